package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/shared/await"
	"gatehouse/shared/envoytest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
	"gatehouse/shared/testdb"
)

// This file holds what of example/ is not Envoy's: Prometheus, Grafana, and the way without containers.

// freePorts are ports of 127.0.0.1 on which nothing listens at present.
func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	ports, err := localserver.FreePorts(n)
	must.Succeed(t, err)
	return ports
}

// decodeYAML reads a file of the example.
func decodeYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// The example's Prometheus, as its file stands but for the address, scrapes a daemon that has the settings of
// the compose file, and has loaded the alerts.
func TestExample_prometheus(t *testing.T) {
	t.Parallel()
	program := testdb.Program(t, "prometheus")
	env := map[string]string{"BACKEND_TYPE": "", "DISABLE_STATS": ""}
	compose := envoytest.ReadCompose(t, "example/compose.yaml")
	for name, value := range compose.Services["ratelimit"].Environment {
		env[name] = value
	}
	env["KVSTORE_URL"], env["PULLMETRICS_ADDR"], env["DRAIN_DELAY"] = testdb.Redis(t).URL(), "127.0.0.1:0", "0s"
	delete(env, "RUNTIME_ROOT")
	daemon := start(t, `[{key: k, @5/y}]`, env)
	var ready struct{ PullMetrics string }
	daemon.log.await(t, `"ready"`, &ready)

	var file struct {
		Scrape []struct {
			DNS []struct {
				Names []string
				Port  int
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	decodeYAML(t, "example/prometheus/prometheus.yml", &file)
	c, _, err := config.Load(compose.Services["ratelimit"].Environ())
	must.Succeed(t, err)
	if d := file.Scrape[0].DNS[0]; compose.Services[d.Names[0]].Image != "gatehouse/ratelimit" ||
		!strings.HasSuffix(c.Stats.PullAddr, fmt.Sprint(":", d.Port)) || c.Stats.PullPath != "/metrics" {
		t.Errorf("scraped: %v, served: %s%s", d, c.Stats.PullAddr, c.Stats.PullPath)
	}

	dir := t.TempDir()
	text, err := os.ReadFile("example/prometheus/prometheus.yml")
	must.Succeed(t, err)
	static := regexp.MustCompile(`(?s)dns_sd_configs:\n.*`).ReplaceAllLiteralString(string(text),
		"static_configs:\n      - {targets: ["+strconv.Quote(ready.PullMetrics)+"]}\n")
	alerts, err := os.ReadFile("example/prometheus/alerts.yml")
	must.Succeed(t, err)
	for name, text := range map[string]string{"prometheus.yml": static, "alerts.yml": string(alerts)} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	at := "127.0.0.1:" + freePorts(t, 1)[0]
	log := new(subprocess.Lines)
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+at)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := subprocess.Start(cmd)
	must.Succeed(t, err)
	defer p.Stop(10 * time.Second)
	query := func(path string, into any) bool {
		resp, err := http.Get("http://" + at + "/api/v1/" + path)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return json.NewDecoder(resp.Body).Decode(into) == nil
	}
	await.True(t, "Prometheus has scraped the daemon", func() bool {
		var got struct {
			Data struct {
				Result []struct {
					Metric map[string]string
					Value  [2]any
				}
			}
		}
		return query("query?query="+url.QueryEscape("ratelimit_service_config_loaded_at"), &got) &&
			len(got.Data.Result) == 1 &&
			got.Data.Result[0].Metric["job"] == "ratelimit" && got.Data.Result[0].Value[1] != "0"
	})
	var rules struct {
		Data struct{ Groups []struct{ Rules []any } }
	}
	if !query("rules", &rules) || len(rules.Data.Groups) == 0 || len(rules.Data.Groups[0].Rules) < 6 {
		t.Errorf("rules: %v\n%s", rules, log)
	}
}

// Grafana finds its source and the dashboard where the compose file mounts them.
func TestExample_grafana(t *testing.T) {
	compose := envoytest.ReadCompose(t, "example/compose.yaml")
	grafana := compose.Services["grafana"]
	mounted := map[string]string{}
	for _, v := range grafana.Volumes {
		parts := strings.Split(v, ":")
		mounted[parts[1]] = parts[0]
	}
	if mounted["/etc/grafana/provisioning"] != "./grafana/provisioning" {
		t.Errorf("mounted: %v", mounted)
	}
	var sources struct {
		Datasources []struct {
			Type, URL string
			Default   bool `yaml:"isDefault"`
		}
	}
	decodeYAML(t, "example/grafana/provisioning/datasources/prometheus.yaml", &sources)
	source := sources.Datasources[0]
	u, err := url.Parse(source.URL)
	if err != nil || source.Type != "prometheus" || !source.Default || u.Port() != "9090" ||
		len(compose.Services[u.Hostname()].Volumes) == 0 {
		t.Errorf("source %+v is no service's", source)
	}
	var dashboards struct {
		Providers []struct {
			Type    string
			Options struct{ Path string }
		}
	}
	decodeYAML(t, "example/grafana/provisioning/dashboards/dashboards.yaml", &dashboards)
	home := grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if p := dashboards.Providers[0]; p.Type != "file" || p.Options.Path != filepath.Dir(home) ||
		mounted[home] != "./grafana/dashboard.json" {
		t.Errorf("dashboards in %v, home %s, mounted %v", p, home, mounted)
	}
}

// The lines of "without containers" are typed by a shell as they stand. Ports alone are others.
func TestExample_withoutContainers(t *testing.T) {
	t.Parallel()
	envoy := envoytest.Program(t)
	for _, program := range []string{"redis-server", "python3", "curl", "sed"} {
		testdb.Program(t, program)
	}
	readme, err := os.ReadFile("example/README.md")
	must.Succeed(t, err)
	m := regexp.MustCompile("(?s)```sh without-containers\nmake build\n(.*?)```").FindSubmatch(readme)
	if m == nil {
		t.Fatal("example/README.md does not say how to run without containers")
	}
	ports := freePorts(t, 6) // store, upstream, gRPC, HTTP, Envoy, its admin page
	script := strings.NewReplacer("6379", ports[0], "8000", ports[1], "10000", ports[4]).Replace(string(m[1]))

	root := t.TempDir()
	example := filepath.Join(root, "ratelimit", "example")
	config, err := os.ReadFile("example/envoy.yaml")
	must.Succeed(t, err)
	here, err := os.Getwd()
	must.Succeed(t, err)
	placed := strings.NewReplacer("port_value: 8081", "port_value: "+ports[2], "port_value: 10000",
		"port_value: "+ports[4], "port_value: 9901", "port_value: "+ports[5],
		"address: 0.0.0.0", "address: 127.0.0.1").Replace(string(config))
	for _, err := range []error{
		os.MkdirAll(example, 0o755), os.Mkdir(filepath.Join(root, "bin"), 0o755),
		os.WriteFile(filepath.Join(example, "envoy.yaml"), []byte(placed), 0o644),
		os.Symlink(filepath.Join(here, "example", "config"), filepath.Join(example, "config")),
		os.WriteFile(filepath.Join(root, "bin", "ratelimit"),
			[]byte("#!/bin/sh\nexec env "+asDaemon+"=1 "+quickExit+" "+os.Args[0]+"\n"), 0o755),
	} {
		must.Succeed(t, err)
	}
	log := new(subprocess.Lines)
	// The shell stays, and ends what it started when it is stopped.
	cmd := exec.Command("sh", "-e", "-c", "trap 'trap - TERM; kill 0' TERM\n"+script+"wait\n")
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PWD=" + root, "ENVOY_BIN=" + envoy, "STORE_STALL=0",
		"HOST=127.0.0.1", "PORT=" + ports[3], "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + ports[2], "DEBUG_HOST=127.0.0.1",
		"DEBUG_PORT=0"}
	p, err := subprocess.Start(cmd)
	must.Succeed(t, err)
	t.Cleanup(func() {
		syscall.Kill(-p.PID(), syscall.SIGKILL) // the shell, and what it started
		<-p.Ended()
		if t.Failed() {
			t.Logf("the shell said:\n%s", log)
		}
	})
	must.Succeed(t, log.Await("ratelimit-limit: 10", nil, p.Ended(), time.Minute))
	over := regexp.MustCompile(`^(?:10|)$`)
	var limited []string
	await.True(t, "429 by the example's rules", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+ports[4]+"/api/", nil)
		must.Succeed(t, err)
		req.Header.Set("x-user", "ben")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		limited = append(limited, resp.Header.Get("RateLimit-Limit"))
		return resp.StatusCode == http.StatusTooManyRequests
	})
	if i := slices.IndexFunc(limited, func(l string) bool { return !over.MatchString(l) }); i >= 0 {
		t.Errorf("limits %q, want 10 of a minute", limited)
	}
}
