{{/* An image's name of a manifest, with the registry and the tag of the values. */}}
{{- define "sax.image" -}}
{{- $images := .root.Values.images -}}
{{- with $images.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .name }}:{{ $images.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* Sets the image and the resources of a container. */}}
{{- define "sax.container" -}}
{{- $_ := set .container "image" (include "sax.image" .) -}}
{{- with .root.Values.images.pullPolicy }}{{ $_ := set $.container "imagePullPolicy" . }}{{ end -}}
{{- with .resources }}{{ $_ := set $.container "resources" . }}{{ end -}}
{{- end }}

{{/* The documents of a manifest of the chart, as JSON: {"all": [...]} */}}
{{- define "sax.documents" -}}
{{- $found := list -}}
{{- range .root.Files.Get .file | required (printf "the chart lacks %s" .file) | splitList "\n---\n" -}}
{{- $found = append $found (fromYaml .) -}}
{{- end -}}
{{- dict "all" $found | toJson -}}
{{- end }}

{{/* The resources of a model server where the values give none; "null": those of the manifest. */}}
{{- define "sax.resources" -}}
{{- if .resources -}}
{{- toJson .resources -}}
{{- else if eq .device "cpu" -}}
{"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}
{{- else if eq .device "cuda" -}}
{"requests": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
{{- else -}}
null
{{- end -}}
{{- end }}

{{/* The pod of the model servers: that of base/model-server-set.yaml. */}}
{{- define "sax.modelServer" -}}
{{- $given := .Values.modelServers -}}
{{- $set := include "sax.documents" (dict "root" . "file" "base/model-server-set.yaml") | fromJson -}}
{{- $pod := (first (first $set.all).spec.replicatedJobs).template.spec.template -}}
{{- $container := first $pod.spec.containers -}}
{{- include "sax.container" (dict "root" . "container" $container "name" (printf "sax-model-%s" $given.device) "resources" (include "sax.resources" $given | fromJson)) -}}
{{- $place := list (printf "--platform_chip=%s" $given.chip) (printf "--platform_topology=%s" $given.topology) -}}
{{- $_ := set $container "args" (concat (list (first $container.args)) $place (rest $container.args) $given.flags) -}}
{{- with $given.nodeSelector }}{{ $_ := set $pod.spec "nodeSelector" . }}{{ end -}}
{{- if ne $given.device "tpu" -}}
{{- $admin := include "sax.documents" (dict "root" . "file" "control/admin-server.yaml") | fromJson -}}
{{- $_ := set $pod.spec "securityContext" (first $admin.all).spec.template.spec.securityContext -}}
{{- $_ := set $container "ports" (slice $container.ports 0 2) -}}
{{- $_ := unset $pod.spec "tolerations" -}}
{{- end -}}
{{- if eq $given.device "cuda" -}}
{{- $_ := set $pod.spec "tolerations" (list (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule")) -}}
{{- end -}}
{{- if $given.locksMemory }}{{ $_ := set $container.securityContext.capabilities "add" (list "SYS_RESOURCE") }}{{ end -}}
{{- if ne $given.kind "JobSet" -}}
{{- $_ := set $pod.spec "restartPolicy" "Always" -}}
{{- $own := list (first $container.env) -}}
{{- if eq $given.kind "LeaderWorkerSet" }}{{ $own = append $own (last $container.env) }}{{ end -}}
{{- $_ := set $container "env" $own -}}
{{- end -}}
{{- toJson $pod -}}
{{- end }}
