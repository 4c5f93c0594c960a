package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/source"
	"gatehouse/shared/must"
)

const manifest = `# of a cluster
apiVersion: apps/v1
kind: Deployment
metadata: {name: ratelimit}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: rules
data:
  shop.yaml: |
    domain: shop
    descriptors:
      - key: user
        rate_limit: {unit: UNIT, requests_per_unit: 5}

  quoted.yml: "domain: quoted\nunknown: 1\n"
  notes.txt: no rules
---
`

// check looks into the ConfigMaps of a file, at the places of the file.
func TestCheck_configMap(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "k8s.yaml")
	f := func(text string, status int, want string, args ...string) {
		t.Helper()
		must.Succeed(t, os.WriteFile(file, []byte(text), 0o644))
		if args == nil {
			args = []string{"ratelimit", "check", file}
		}
		var out strings.Builder
		got := (Program{}).run(t.Context(), args, nil, &out, &out)
		said := strings.ReplaceAll(strings.ReplaceAll(out.String(), file, "F"), dir, "D")
		if said = strings.TrimPrefix(said, "checking rate limit configs...\n"); got != status || said != want {
			t.Errorf("%.60q: exit status %d, want %d\n%s\nwant\n%s", text, got, status, said, want)
		}
	}
	const (
		failed = "error loading rate limit configs: "
		found  = "passed over in F: Deployment ratelimit, the entry notes.txt\nopening config file: F: ConfigMap rules, " +
			"shop.yaml\nopening config file: F: ConfigMap rules, quoted.yml\n"
		good = "all rate limit configs ok\n"
	)
	rules := strings.Replace(manifest, "UNIT", "minute", 1)
	f(strings.Replace(rules, `unknown: 1\n`, "", 1), exitOK, found+good)
	f(strings.ReplaceAll(strings.Replace(rules, `unknown: 1\n`, "", 1), "\n", "\r\n"), exitOK, found+good)
	f(strings.Replace(manifest, "UNIT", "minut", 1), exitFailed, found+
		failed+`F: ConfigMap rules, quoted.yml:2:1: domain "quoted": unknown key "unknown" in the file; allowed are `+
		"domain, descriptors or on_store_failure\n"+
		failed+`F: ConfigMap rules, shop.yaml:15:28: domain "shop", descriptor user: unit "minut" is unknown; did you `+
		"mean minute? Allowed are second, minute, hour, day, week, month or year\n")
	f("kind: ConfigMap\napiVersion: v1\ndata:\n  a.yaml: |-\n    ---\n    domain: d\n", exitOK,
		"opening config file: F: ConfigMap without name, a.yaml\n"+good)
	f("kind: ConfigMap\napiVersion: v1\ndata: [x]\n---\n- y\n---\nkind: Pod\napiVersion: v1\nmetadata: [z]\n", exitFailed,
		failed+"F: no entry of its ConfigMaps is named *.yaml or *.yml, so there are no rules\n")
	f("kind: ConfigMap\napiVersion: v1\ndata: {a: b}\n", exitFailed,
		failed+"F: no entry of its ConfigMaps is named *.yaml or *.yml, so there are no rules\n")
	f("kind: CustomResourceDefinition\napiVersion: v1\nmetadata: {name: limits}\n---\nkind: Pod\napiVersion: v1\n",
		exitFailed, failed+"F: this is no file of rules but a Kubernetes manifest without ConfigMap: "+
			"CustomResourceDefinition limits, Pod\n")
	f("kind: ConfigMap\napiVersion: v1\n{{- if .Values.x }}\ndata: {}\n{{ end }}\n", exitFailed,
		"opening config file: F\n"+failed+"F:3:1: this is a template, not a file of rules: {{ stands here; check what it "+
			"makes, such as the output of helm template\n")
	f("domain: d\n", exitOK, "opening config file: F\n"+good)

	// A folder is read as the daemon does.
	folder := []string{"ratelimit", "check", dir}
	f("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {}\n", exitFailed, "loading config directory: D\n"+
		"opening config file: F\n"+failed+"F:1:1: this is a Kubernetes ConfigMap, not a file of rules; name "+
		"it as a file to have check look into a ConfigMap, or write its entry into a file\n", folder...)
	f(rules, exitFailed, "loading config directory: D\nopening config file: F\n"+failed+
		"F:5:1: a second YAML document begins here; a file holds one domain, so put each document into a file of "+
		"its own\n", folder...)
}

// A folder without rules is an error, and a warning for the program of the replaced service and with -settings. Whether
// a path is a folder is known without looking for that program, and with -config_dir.
func TestCheck_folder(t *testing.T) {
	dir := t.TempDir()
	f := func(status int, want string, environ []string, args ...string) {
		t.Helper()
		var out strings.Builder
		if got := (Program{}).run(t.Context(), args, environ, &out, &out); got != status ||
			!strings.Contains(out.String(), want) {
			t.Errorf("%q: exit status %d, want %d and %q\n%s", args, got, status, want, out.String())
		}
	}
	const old, failed = "/bin/ratelimit_config_check", "error loading rate limit configs: "
	nothing := "no *.yaml or *.yml file in " + dir + ": nothing would be limited"
	f(exitFailed, failed+nothing+"; name the folder that holds the rules\n", nil, "ratelimit", "check", dir)
	f(exitFailed, `"ok": false`, nil, "ratelimit", "check", "-format", "json", dir)
	f(exitOK, "warning: "+nothing+"\n", nil, old, "-config_dir", dir)
	f(exitOK, "warning: "+nothing+"\n", []string{"RUNTIME_ROOT=" + dir, "RUNTIME_APPDIRECTORY=."}, "ratelimit", "check",
		"-settings")
	none := filepath.Join(dir, "none")
	f(exitFailed, failed+"open "+none+": no such file or directory\n", nil, "ratelimit", "check", none)
	loading := "checking rate limit configs...\nloading config directory: "
	unread := "\n" + failed + "source: read the configuration directory: open "
	f(exitFailed, loading+none+unread+none+": no such file or directory\n", nil, "ratelimit", "check", "-config_dir", none)
	f(exitFailed, loading+none+unread+none+": no such file or directory\n", nil, old, "-config_dir", none)
	f(exitFailed, loading+unread+": no such file or directory\n", nil, old)
	f(exitFailed, loading+unread+": no such file or directory\n", nil, old, dir)

	a, sub := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "sub")
	must.Succeed(t, errors.Join(os.WriteFile(a, []byte("domain: d\n"), 0o644), os.Mkdir(sub, 0o755),
		os.WriteFile(filepath.Join(sub, "a.yaml"), []byte("domain: d\n"), 0o644)))
	f(exitOK, "warning: "+source.NotRead+": "+sub+"\n", nil, "ratelimit", "check", dir)
	f(exitUsage, "ratelimit check: -settings takes a folder, not "+a+"\n", nil, "ratelimit", "check", "-settings", a)
	f(exitFailed, loading+dir+"\nopening config file: "+a+"\n"+failed+"read "+sub+": is a directory\n", nil, old,
		"-config_dir", dir)
	f(exitOK, loading+sub+"\nopening config file: "+filepath.Join(sub, "a.yaml")+"\nall rate limit configs ok\n", nil, old,
		"-config_dir", sub, "extra")
	f(exitUsage, "usage: ratelimit check", nil, "ratelimit", "check", "-config_dir", sub, "extra")
	f(exitFailed, filepath.Join(sub, "a.yaml")+":1:9: ", nil, "ratelimit", "check", dir, sub)

	left := filepath.Join(sub, "._a.yaml")
	must.Succeed(t, os.WriteFile(left, nil, 0o644))
	f(exitOK, "warning: "+source.Leftover+": "+left+"\n", nil, "ratelimit", "check", sub)
}
