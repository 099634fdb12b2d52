{{- define "moerl.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "moerl.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "moerl.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "moerl.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "moerl.selector" -}}
app.kubernetes.io/name: {{ include "moerl.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "moerl.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "moerl.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: moerl
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "moerl.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "moerl.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is required when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "moerl.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- define "moerl.installation" -}}
{{- default (printf "%s.%s" .Release.Namespace .Release.Name) .Values.installation }}
{{- end }}

{{- /* Pod and container security: pod security level restricted. */ -}}
{{- define "moerl.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "moerl.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* What the operator may do in a namespace whose jobs it runs. */ -}}
{{- define "moerl.namespaceRules" -}}
- apiGroups: [moerl.dev]
  resources: [moerljobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [moerl.dev]
  resources: [moerljobs/status]
  verbs: [patch]
- apiGroups: [moerl.dev]
  resources: [moerljobs/finalizers]
  verbs: [update]
- apiGroups: ['']
  resources: [pods]
  verbs: [list, watch]
- apiGroups: ['']
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: ['']
  resources: [serviceaccounts]
  verbs: [get, list, watch, create]
- apiGroups: ['']
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}

{{- /* What it reads of the cluster, in both modes. */ -}}
{{- define "moerl.clusterRules" -}}
- apiGroups: ['']
  resources: [nodes]
  verbs: [get, list, watch]
- apiGroups: [moerl.dev]
  resources: [moerlnodeclasses]
  verbs: [get, list, watch]
{{- end }}
