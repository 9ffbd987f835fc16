"""What is wrong with a live cluster: `sax k8s doctor`."""
