{{- define "gantrymq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The labels that select the pods of a component: (list $ "broker"). */}}
{{- define "gantrymq.selector" -}}
app.kubernetes.io/name: gantrymq
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "gantrymq.labels" -}}
{{ include "gantrymq.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* HOST:PORT of each pod of a StatefulSet, separated by semicolons: (list $ "namesrv" 2 9876). */}}
{{- define "gantrymq.addresses" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $port := index . 3 }}
{{- range $n := until (int (index . 2)) }}
{{- if $n }};{{ end }}{{ $root.Release.Name }}-{{ $component }}-{{ $n }}.{{ $root.Release.Name }}-{{ $component }}:{{ $port }}
{{- end }}
{{- end }}

{{- define "gantrymq.namesrvAddr" -}}
{{ include "gantrymq.addresses" (list . "namesrv" .Values.namesrv.replicas 9876) }}
{{- end }}

{{/* Brokers have controllers if they have replicas. */}}
{{- define "gantrymq.hasControllers" -}}
{{- if gt (int .Values.broker.replicas) 1 }}true{{ end }}
{{- end }}

{{/* The settings that all pods have: (list $ "broker"). */}}
{{- define "gantrymq.pod" -}}
# A server takes 30 s at most to stop in order.
terminationGracePeriodSeconds: 60
# No server calls the cluster's API.
automountServiceAccountToken: false
{{- with (index . 0).Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "gantrymq.selector" . | nindent 14 }}
{{- end }}

{{- define "gantrymq.container" -}}
image: {{ include "gantrymq.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The claim of a StatefulSet: its values. */}}
{{- define "gantrymq.claim" -}}
metadata:
  name: data
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests: {storage: {{ .storage }}}
{{- end }}

{{/* A disruption budget of one pod: (list $ "broker" NAME). */}}
{{- define "gantrymq.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ index . 2 }}
  labels:
    {{- include "gantrymq.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "gantrymq.selector" . | nindent 6 }}
      {{- if gt (len .) 3 }}
      gantrymq/broker-name: {{ index . 3 }}
      {{- end }}
{{- end }}

{{/* Peers of a NetworkPolicy: (list $ "broker" "controller" ...). The peer "clients" are the pods of clients. */}}
{{- define "gantrymq.peers" -}}
{{- $root := index . 0 }}
{{- range $peer := rest . }}
{{- if eq $peer "clients" }}
- podSelector:
    matchLabels:
      {{- toYaml $root.Values.clientLabels | nindent 6 }}
{{- else }}
- podSelector:
    matchLabels:
      {{- include "gantrymq.selector" (list $root $peer) | nindent 6 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gantrymq.monitoring" -}}
- from:
    - namespaceSelector:
        matchLabels: {kubernetes.io/metadata.name: {{ .Values.metrics.namespace }}}
  ports: [{port: metrics}]
{{- end }}

{{- define "gantrymq.dns" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}

{{/* Lines KEY=VALUE. */}}
{{- define "gantrymq.properties" -}}
{{- range $key, $value := . }}
{{ $key }}={{ $value }}
{{- end }}
{{- end }}
