package kubetest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"gatehouse/shared/kubetest"
	"gatehouse/shared/must"
)

var daemons = []string{"auth", "ratelimit"}

func folder(daemon string) string { return filepath.Join("..", "..", daemon, "deploy", "kubernetes") }

// The oldest Kubernetes that is supported, and the newest with a schema. A misspelt field is refused.
func TestSchemas(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.27", "1.37"} {
		if err := kubetest.Validate(t, "../..", version, folder("auth"), folder("ratelimit")); err != nil {
			t.Error(err)
		}
	}
	mutated := t.TempDir()
	text, err := os.ReadFile(filepath.Join(folder("auth"), "deployment.yaml"))
	must.Succeed(t, err)
	misspelt := strings.Replace(string(text), "enableServiceLinks:", "enableServiceLink:", 1)
	must.Succeed(t, os.WriteFile(filepath.Join(mutated, "deployment.yaml"), []byte(misspelt), 0o644))
	if err := kubetest.Validate(t, "../..", "1.27", mutated); err == nil {
		t.Error("a misspelt field is accepted")
	}
}

// Everything that is named is there; each mutation lacks something.
func TestReferences(t *testing.T) {
	t.Parallel()
	for _, daemon := range daemons {
		if missing := kubetest.Read(t, folder(daemon)).References(); len(missing) > 0 {
			t.Errorf("%s: %q", daemon, missing)
		}
	}
	f := func(daemon, want string, oldnew ...string) {
		t.Helper()
		if got := kubetest.Read(t, folder(daemon), oldnew...).References(); !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("%q: %q, want %q", oldnew, got, want)
		}
	}
	f("auth", "kustomization.yaml lists", ", network.yaml", "")
	f("auth", "selects app.kubernetes.io/name=other", "selector: {app.kubernetes.io/name: auth}",
		"selector: {app.kubernetes.io/name: other}")
	f("ratelimit", "leads to port gprc", "targetPort: grpc", "targetPort: gprc")
	f("ratelimit", "lets to port prometheus", "{port: metrics}, ", "{port: prometheus}, ")
	f("ratelimit", "there is no ConfigMap rules", "configMap: {name: ratelimit-rules}", "configMap: {name: rules}")
	f("auth", "the secret lacks root-key", "key: secret-key,", "key: root-key,")
	f("auth", "nothing mounts the secret's more", "--from-literal=jwt", "--from-literal=more=x --from-literal=jwt")
	f("auth", "does not make the secret auth", "generic auth ", "generic other ")
	f("auth", "envFrom", "configMapRef: {name: auth}", "configMapRef: {name: settings}")
	f("ratelimit", "there is no volume config", "{name: rules, mountPath", "{name: config, mountPath")
	f("ratelimit", "subPath", "mountPath: /data/ratelimit/config,", "mountPath: /data/ratelimit/config, subPath: x,")
	f("ratelimit", "livenessProbe asks port admin", "tcpSocket: {port: debug}", "tcpSocket: {port: admin}")
	f("auth", "does not name the image", "image: gatehouse/auth", "image: gatehouse/other")
}

// The pods satisfy the restricted profile; each mutation breaks one rule.
func TestRestricted(t *testing.T) {
	t.Parallel()
	for _, daemon := range daemons {
		if broken := kubetest.Restricted(kubetest.Read(t, folder(daemon)).Pod()); len(broken) > 0 {
			t.Errorf("%s: %q", daemon, broken)
		}
	}
	f := func(want string, oldnew ...string) {
		t.Helper()
		for _, daemon := range daemons {
			got := kubetest.Restricted(kubetest.Read(t, folder(daemon), oldnew...).Pod())
			if !strings.Contains(strings.Join(got, "\n"), want) {
				t.Errorf("%s: %q: %q, want %q", daemon, oldnew, got, want)
			}
		}
	}
	pod := "      automountServiceAccountToken: false"
	own := "            allowPrivilegeEscalation: false"
	for _, field := range []string{"hostNetwork", "hostPID", "hostIPC"} {
		f(field, pod, pod+"\n      "+field+": true")
	}
	f("automountServiceAccountToken is not false", pod, "")
	f("enableServiceLinks is not false", "enableServiceLinks: false", "enableServiceLinks: true")
	f("a volume of kind hostPath", "        - name: secrets", "        - {name: x, hostPath: {path: /}}\n        - name: secrets")
	f("seccompProfile", "RuntimeDefault", "Unconfined")
	f("runAsNonRoot is not true", "runAsNonRoot: true", "runAsNonRoot: false")
	f("runAsNonRoot is not true", own, own+"\n            runAsNonRoot: false")
	f("runAsUser", "runAsUser: 65532", "runAsUser: 0")
	f("privileged", own, own+"\n            privileged: true")
	f("allowPrivilegeEscalation is not false", own, "")
	f("readOnlyRootFilesystem is not true", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false")
	f("keeps capabilities", "drop: [ALL]", "drop: [NET_RAW]")
	f("adds capabilities", "drop: [ALL]", "drop: [ALL], add: [SYS_ADMIN]")
	f("procMount", own, own+"\n            procMount: Unmasked")
	f("a port of the host", "{name: http,", "{name: http, hostPort: 80,")
	f("sysctls", "        runAsNonRoot: true", "        runAsNonRoot: true\n        sysctls: [{name: kernel.shm_rmid_forced, value: \"0\"}]")
	f("options of SELinux", own, own+"\n            seLinuxOptions: {type: x}")
	f("no AppArmor", own, own+"\n            appArmorProfile: {type: Unconfined}")
}

// The component for the Prometheus operator: its rules are the example's, and of its fields each is one that the two
// kinds have.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	fields := map[string][]string{
		"PrometheusRule": {"apiVersion", "kind", "metadata", "spec"},
		"ServiceMonitor": {"apiVersion", "kind", "metadata", "spec"},
	}
	specs := map[string][]string{"PrometheusRule": {"groups"}, "ServiceMonitor": {"selector", "endpoints"}}
	for _, daemon := range daemons {
		m := kubetest.Read(t, filepath.Join(folder(daemon), "monitoring"))
		if kind := kubetest.Text(m.Kustomization, "kind"); kind != "Component" || len(kubetest.List(m.Kustomization, "resources")) != len(m.Files) {
			t.Errorf("%s: a %s of %v", daemon, kind, m.Kustomization)
		}
		for _, o := range m.Objects {
			kind := kubetest.Text(o, "kind")
			only(t, daemon+" "+kind, map[string]any(o), fields[kind])
			only(t, daemon+" "+kind, kubetest.Get(o, "spec"), specs[kind])
			if v := kubetest.Text(o, "apiVersion"); v != "monitoring.coreos.com/v1" {
				t.Errorf("%s %s: %s", daemon, kind, v)
			}
		}
		text, err := os.ReadFile(filepath.Join("..", "..", daemon, "example", "prometheus", "alerts.yml"))
		must.Succeed(t, err)
		var alerts map[string]any
		must.Succeed(t, yaml.Unmarshal(text, &alerts))
		if got := kubetest.Get(m.Kind("PrometheusRule")[0], "spec", "groups"); !reflect.DeepEqual(got, alerts["groups"]) {
			t.Errorf("%s: the rules differ from example/prometheus/alerts.yml", daemon)
		}
		scrape(t, daemon, m.Kind("ServiceMonitor")[0], kubetest.Read(t, folder(daemon)))
	}
}

// only wants no other fields.
func only(t *testing.T, what string, v any, fields []string) {
	t.Helper()
	of, _ := v.(map[string]any)
	if len(of) != len(fields) {
		t.Errorf("%s has %v, want %q", what, of, fields)
	}
	for _, field := range fields {
		if of[field] == nil {
			t.Errorf("%s lacks %s", what, field)
		}
	}
}

// scrape follows the monitor to one service with such labels and such a port, and to the daemon's port and path.
func scrape(t *testing.T, daemon string, monitor kubetest.Object, m *kubetest.Manifests) {
	t.Helper()
	endpoint := kubetest.Get(monitor, "spec", "endpoints", 0)
	only(t, daemon+"'s endpoint", endpoint, []string{"port", "path", "interval"})
	found := ""
	for _, service := range m.Kind("Service") {
		labels, _ := kubetest.Get(service, "metadata", "labels").(map[string]any)
		matches := true
		for key, value := range kubetest.Get(monitor, "spec", "selector", "matchLabels").(map[string]any) {
			matches = matches && labels[key] == value
		}
		for _, p := range kubetest.List(service, "spec", "ports") {
			for _, own := range kubetest.List(m.Pod(), "containers", 0, "ports") {
				if matches && kubetest.Text(p, "name") == kubetest.Text(endpoint, "port") &&
					kubetest.Text(own, "name") == kubetest.Text(p, "targetPort") {
					found += ":" + kubetest.Text(own, "containerPort") + kubetest.Text(endpoint, "path")
				}
			}
		}
	}
	if want := map[string]string{"auth": ":9100/", "ratelimit": ":9090/metrics"}[daemon]; found != want {
		t.Errorf("%s: the monitor leads to %q, want %s of one service", daemon, found, want)
	}
}

// kubectl builds both folders, with the namespace and the image that kustomization.yaml names.
func TestKustomize(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("kubectl"); err != nil {
		t.Skip("kubectl is not here")
	}
	for _, daemon := range daemons {
		out, err := exec.Command("kubectl", "kustomize", folder(daemon)).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", daemon, err, out)
		}
		for _, want := range []string{"namespace: gatehouse\n", "image: registry.example/gatehouse/" + daemon + ":0.1.0\n"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q in\n%s", daemon, want, out)
			}
		}
	}
}
