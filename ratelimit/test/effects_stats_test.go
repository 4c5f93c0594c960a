package test

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// statsdServer keeps what it is sent, over UDP and TCP on one port.
type statsdServer struct {
	port string
	mu   sync.Mutex
	udp  strings.Builder
	tcp  strings.Builder
}

func startStatsd(t *testing.T) *statsdServer {
	t.Helper()
	s := &statsdServer{}
	var tcp net.Listener
	var udp net.PacketConn
	for range 20 { // one port for both
		var err error
		if tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			break
		}
		tcp.Close()
	}
	if udp == nil {
		t.Fatal("no port is free for UDP and TCP")
	}
	_, s.port, _ = net.SplitHostPort(tcp.Addr().String())
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 64<<10)
		for {
			n, _, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			s.write(&s.udp, b[:n])
		}
	})
	wg.Go(func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(t.Context(), func() { conn.Close() })()
				b := make([]byte, 64<<10)
				for {
					n, err := conn.Read(b)
					s.write(&s.tcp, b[:n])
					if err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		tcp.Close()
		udp.Close()
		wg.Wait()
	})
	return s
}

func (s *statsdServer) write(to *strings.Builder, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to.Write(b)
}

// lines are what came over the network "udp" or "tcp".
func (s *statsdServer) lines(network string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if network == "udp" {
		return s.udp.String()
	}
	return s.tcp.String()
}

// env points a daemon there, with a short flush.
func (s *statsdServer) env(more ...string) map[string]string {
	return with(map[string]string{"DISABLE_STATS": "", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": s.port,
		"STATS_FLUSH_INTERVAL": "20ms"}, "", more...)
}

// awaitLine waits for a line that begins so.
func (s *statsdServer) awaitLine(t *testing.T, network, line string) {
	t.Helper()
	await.True(t, line+" over "+network, func() bool {
		return strings.Contains("\n"+s.lines(network), "\n"+line)
	})
}

// awaitTime sends requests until a time is sent: none is before the connection stands.
func (s *statsdServer) awaitTime(t *testing.T, p *process) {
	t.Helper()
	c := p.dial(t)
	await.True(t, "a response time", func() bool {
		decide1(t, c, "other", "v")
		return strings.Contains(s.lines("tcp"), "\nratelimit_server.ShouldRateLimit.response_time:")
	})
}

const ruleHits = "ratelimit.service.rate_limit.d.k.total_hits"

// hit starts a daemon and has one hit counted.
func hit(t *testing.T, env map[string]string) *process {
	t.Helper()
	p := start(t, `[{key: k, @100/y}, {key: deep, detailed_metric: true, @100/y}]`, env)
	decide1(t, p.dial(t), "k", "v")
	return p
}

var _ = effect("DISABLE_STATS", func(t *testing.T) {
	s := startStatsd(t)
	p := hit(t, s.env("DISABLE_STATS", "true", "USE_STATSD", "true"))
	if _, body := get(t, p.debug+"/stats"); !strings.Contains(body, ruleHits+": 1") {
		t.Error("not at /stats either")
	}
	if err := p.Stop(time.Minute); err != nil { // flushes once more
		t.Fatal(err)
	}
	if got := s.lines("tcp") + s.lines("udp") + p.stdout.text(); got != "" {
		t.Errorf("got %q", got)
	}
})

var _ = effect("USE_STATSD", func(t *testing.T) {
	s := startStatsd(t)
	p := hit(t, s.env("USE_STATSD", "false"))
	p.stdout.await(t, ruleHits, nil)
	if got := s.lines("tcp"); got != "" {
		t.Errorf("got %q", got)
	}
})

var _ = effect("STATSD_HOST STATSD_PORT", func(t *testing.T) {
	s := startStatsd(t)
	p := hit(t, s.env())
	s.awaitLine(t, "tcp", ruleHits+":1|c\n")
	s.awaitTime(t, p)
})

var _ = effect("STATSD_PROTOCOL", func(t *testing.T) {
	s := startStatsd(t)
	hit(t, s.env("STATSD_PROTOCOL", "udp"))
	s.awaitLine(t, "udp", ruleHits+":1|c\n")
})

var _ = effect("STATS_FLUSH_INTERVAL", func(t *testing.T) {
	s := startStatsd(t)
	p := hit(t, s.env("STATS_FLUSH_INTERVAL", "1h"))
	s.awaitTime(t, p) // times do not wait for it
	if strings.Contains(s.lines("tcp"), ruleHits) {
		t.Error("flushed before the interval was over")
	}
	p.Stop(time.Minute)
	s.awaitLine(t, "tcp", ruleHits+":1|c\n")
})

var _ = effect("EXTRA_TAGS", func(t *testing.T) {
	s := startStatsd(t)
	hit(t, s.env("EXTRA_TAGS", "ver:1.2,az:b"))
	s.awaitLine(t, "tcp", ruleHits+".__az=b.__ver=1_2:1|c\n")
	p := hit(t, pulled("EXTRA_TAGS", "ver:1.2,az:b"))
	awaitValue(t, p, "ratelimit_service_rate_limit_total_hits", `az="b" domain="d" key1="k" ver="1_2"`, 1)
	awaitValue(t, p, "ratelimit_service_total_requests", `az="b" grpc_method="ShouldRateLimit" ver="1_2"`, 1)
	if m := series(t, p)["go_goroutines"][`az="b" ver="1_2"`]; m == nil {
		t.Error("the tags are not on Go's figures")
	}
})

var _ = effect("USE_TAGGED_STATSD", func(t *testing.T) {
	s := startStatsd(t)
	hit(t, s.env("USE_TAGGED_STATSD", "true", "EXTRA_TAGS", "ver:1.2,az:b"))
	s.awaitLine(t, "udp", ruleHits+":1|c|#az:b,ver:1_2\n")
	hit(t, s.env("USE_DOG_STATSD", "true", "STATSD_PROTOCOL", "tcp", "EXTRA_TAGS", "pod:7"))
	s.awaitLine(t, "tcp", ruleHits+":1|c|#pod:7\n")
})

// mogrified is a daemon with one mogrifier, and the line that shows what it does.
func mogrified(t *testing.T) {
	s := startStatsd(t)
	hit(t, s.env("USE_TAGGED_STATSD", "true", "EXTRA_TAGS", "az:b",
		"TAGGED_STATSD_MOGRIFIERS", "rules,never",
		"TAGGED_STATSD_MOGRIFIER_RULES_PATTERN", `^ratelimit\.service\.rate_limit\.([^.]+)\.(.+)\.([a-z_]+)$`,
		"TAGGED_STATSD_MOGRIFIER_RULES_NAME", "limits.$3",
		"TAGGED_STATSD_MOGRIFIER_RULES_TAGS", "dom:$1,rule:$2",
		"TAGGED_STATSD_MOGRIFIER_NEVER_PATTERN", `rate_limit`,
		"TAGGED_STATSD_MOGRIFIER_NEVER_NAME", "second",
	))
	s.awaitLine(t, "udp", "limits.total_hits:1|c|#az:b,dom:d,rule:k\n")
}

var _ = effect("TAGGED_STATSD_MOGRIFIERS TAGGED_STATSD_MOGRIFIER_N_PATTERN TAGGED_STATSD_MOGRIFIER_N_NAME "+
	"TAGGED_STATSD_MOGRIFIER_N_TAGS", mogrified)

// pulled is the environment of a daemon with pull metrics and no other sink.
func pulled(more ...string) map[string]string {
	return with(map[string]string{"DISABLE_STATS": "", "USE_PULLMETRICS": "true", "PULLMETRICS_ADDR": "127.0.0.1:0"},
		"", more...)
}

// pageOf is where a daemon serves its pull metrics.
func pageOf(t *testing.T, p *process) string {
	t.Helper()
	var ready struct {
		Pull string `json:"pullmetrics"`
	}
	p.log.await(t, `"ready"`, &ready)
	return ready.Pull
}

// series scrapes a daemon: samples by metric and labels, which are sorted: `domain="d" key1="k"`.
func series(t *testing.T, p *process) map[string]map[string]*dto.Metric {
	t.Helper()
	status, text := get(t, pageOf(t, p)+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	return parseSeries(t, text)
}

func parseSeries(t *testing.T, text string) map[string]map[string]*dto.Metric {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	all := map[string]map[string]*dto.Metric{}
	for name, f := range families {
		all[name] = map[string]*dto.Metric{}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			slices.Sort(labels)
			id := strings.Join(labels, " ")
			if all[name][id] != nil {
				t.Errorf("%s{%s} is there twice", name, id)
			}
			all[name][id] = m
		}
	}
	return all
}

// value is a counter's or gauge's, or the count of a histogram or summary; -1 for no series.
func value(m *dto.Metric) float64 {
	switch {
	case m == nil:
		return -1
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	case m.Summary != nil:
		return float64(m.Summary.GetSampleCount())
	}
	return m.GetUntyped().GetValue()
}

// awaitValue scrapes until a series has a value.
func awaitValue(t *testing.T, p *process, name, labels string, want float64) {
	t.Helper()
	var last map[string]*dto.Metric
	await.True(t, fmt.Sprintf("%s{%s} is %v", name, labels, want), func() bool {
		last = series(t, p)[name]
		return value(last[labels]) == want
	}, func() string { return fmt.Sprintf("there are %v", last) })
}

var _ = effect("USE_PULLMETRICS", func(t *testing.T) {
	p := hit(t, pulled())
	awaitValue(t, p, "ratelimit_service_rate_limit_total_hits", `domain="d" key1="k"`, 1)
	if got := p.stdout.text(); got != "" {
		t.Errorf("JSON lines beside it: %s", got)
	}
	// Another sink gets everything too.
	s := startStatsd(t)
	p = hit(t, s.env("USE_PULLMETRICS", "true", "PULLMETRICS_ADDR", "127.0.0.1:0", "USE_STATSD", "true"))
	s.awaitLine(t, "tcp", ruleHits+":1|c\n")
	awaitValue(t, p, "ratelimit_service_rate_limit_total_hits", `domain="d" key1="k"`, 1)
	awaitValue(t, p, "ratelimit_service_response_time_seconds", `grpc_method="ShouldRateLimit"`, 1)
	s.awaitTime(t, p)
})

var _ = effect("PULLMETRICS_ADDR PULLMETRICS_PATH", func(t *testing.T) {
	p := hit(t, pulled("PULLMETRICS_PATH", "/numbers"))
	at := pageOf(t, p)
	if status, _ := get(t, at+"/numbers"); status != 200 {
		t.Errorf("/numbers: %d", status)
	}
	for _, other := range []string{"/metrics", "/", "/numbers/", "/debug/pprof/", "/debug/vars"} {
		if status, _ := get(t, at+other); status != 404 {
			t.Errorf("%s: %d, want 404", other, status)
		}
	}
	// The address is bound exclusively: a second daemon does not start on it.
	second := launch(t, `[{key: k, @100/y}]`, pulled("PULLMETRICS_ADDR", at))
	select {
	case <-second.Ended():
	case <-time.After(20 * time.Second):
		t.Fatal("two daemons share one address")
	}
	if !strings.Contains(second.log.text(), "PULLMETRICS_ADDR: listen on "+at) {
		t.Errorf("%s", second.log.text())
	}
})

var _ = effect("PULLMETRICS_MAPPER_YAML", func(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mapping.yaml")
	text := "mappings:\n- match: ratelimit.service.rate_limit.*.*.total_hits\n  name: hits\n" +
		"  labels: {dom: $1, rule: $2}\n"
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o600))
	p := hit(t, pulled("PULLMETRICS_MAPPER_YAML", file))
	awaitValue(t, p, "hits", `dom="d" rule="k"`, 1)
	must.Succeed(t, os.WriteFile(file, []byte(text+"- match: a.*\n  nam: b\n"), 0o600))
	out, err := command(pulled("BACKEND_TYPE", "memory", "PULLMETRICS_MAPPER_YAML", file)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "line 6: field nam not found") {
		t.Errorf("%v: %s", err, out)
	}
})

var _ = effect("PULLMETRICS_RESPONSE_TIME_AS_MILLISECONDS", func(t *testing.T) {
	f := func(setting string, unit float64) {
		t.Helper()
		s := startStatsd(t)
		p := start(t, `[{key: k, @100/y}]`, s.env("USE_STATSD", "true", "USE_PULLMETRICS", "true", "PULLMETRICS_ADDR",
			"127.0.0.1:0", "PULLMETRICS_RESPONSE_TIME_AS_MILLISECONDS", setting))
		p.log.await(t, "connected to statsd", nil)
		decide1(t, p.dial(t), "k", "v")
		s.awaitLine(t, "tcp", "ratelimit_server.ShouldRateLimit.response_time:")
		m := regexp.MustCompile(`ShouldRateLimit\.response_time:([0-9.]+)\|ms`).FindStringSubmatch(s.lines("tcp"))
		ms, err := strconv.ParseFloat(m[1], 64)
		must.Succeed(t, err)
		const name, labels = "ratelimit_service_response_time_seconds", `grpc_method="ShouldRateLimit"`
		awaitValue(t, p, name, labels, 1)
		if sum := series(t, p)[name][labels].GetHistogram().GetSampleSum(); math.Abs(sum-ms*unit) > 1e-5*unit {
			t.Errorf("%q: %v for %v ms", setting, sum, ms)
		}
	}
	f("false", 0.001)
	f("true", 1)
})
