#!/bin/sh
# A cell on kind that scales from no model server to three and back. Run it at the root of a clone;
# it needs docker, kind, kubectl, helm and an installed sax. The cluster is left: `kind delete cluster`.
set -eu
cd "$(dirname "$0")/../.."

docker build --target control -t sax-control:0.1.0 .
docker build --target model-cpu -t sax-model-cpu:0.1.0 .

kind create cluster
kind load docker-image sax-control:0.1.0 sax-model-cpu:0.1.0

helm install prometheus kube-prometheus-stack --namespace monitoring --create-namespace --wait \
  --repo https://prometheus-community.github.io/helm-charts \
  --set prometheus.prometheusSpec.podMonitorSelectorNilUsesHelmValues=false \
  --set prometheus.prometheusSpec.ruleSelectorNilUsesHelmValues=false
helm install keda keda --namespace keda --create-namespace --wait \
  --repo https://kedacore.github.io/charts

kubectl apply -k examples/autoscaled_cell
kubectl rollout status deployment/sax-admin-server deployment/sax-http

kubectl port-forward service/sax-admin-server 10000 &
forward=$!
kubectl port-forward service/sax-http-lb 8888 &
trap 'kill $forward $!' EXIT
sleep 2

# No server runs yet: the model is published, and the first request brings one up.
export SAX_ADMIN=127.0.0.1:10000
sax publish smollm2 auto HuggingFaceTB/SmolLM2-135M-Instruct 1 \
  --min-replicas 0 --max-replicas 3 --target-queue 2
curl -s http://127.0.0.1:8888/v1/chat/completions --max-time 600 -d '{
  "model": "smollm2", "messages": [{"role": "user", "content": "What is the capital of France?"}]
}'

# More than the first one can answer: KEDA follows the number that the admin server wants.
sax bench --url http://127.0.0.1:8888 --model smollm2 --requests 400 --concurrency 64 \
  --prompt-tokens 64 --tokens 64 &
bench=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
  sax ls smollm2 | grep -E 'ready|scaling' || true
  kubectl get deployment sax-model-server
  sleep 10
done
wait $bench
