package stats

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

func mogrifier(t *testing.T, pattern, name, tags string) Mogrifier {
	t.Helper()
	m, err := NewMogrifier(pattern, name, tags)
	must.Succeed(t, err)
	return m
}

func TestMogrifier(t *testing.T) {
	f := func(pattern, name, tags, in, want string) {
		t.Helper()
		m := mogrifier(t, pattern, name, tags)
		got := "no match"
		if name, tags, ok := m.apply(in); ok {
			got = name
			for _, tag := range tags {
				got += " " + tag.Name + ":" + tag.Value
			}
		}
		if got != want {
			t.Errorf("%s on %s: got %q, want %q", pattern, in, got, want)
		}
	}
	const rule = `^ratelimit\.service\.rate_limit\.([^.]+)\.(.+)\.([a-z_]+)$`
	f(rule, "limits.$3", "dom:$1,rule:$2", "ratelimit.service.rate_limit.d.a.b.total_hits",
		"limits.total_hits dom:d rule:a.b")
	f(rule, "limits.$3", "z:$2,dom:$1", "ratelimit.service.rate_limit.d.k_a,b.over_limit",
		"limits.over_limit z:k_a_b dom:d")
	f(rule, "x", "", "ratelimit.service.config_load_success", "no match")
	f(`load`, "$0.$1.$2", "", "config_load_success", "load.$1.$2")
	f(`(a)|(b)`, "<$1><$2>", "t:x$2", "b", "<><b> t:xb")
	f(`(a)`, "$10$1$", "u:http://$1", "a", "$10a$ u:http://a")
	for _, bad := range [][3]string{{"(", "n", ""}, {"a", "n", "k"}, {"a", "n", "k:"}, {"a", "n", ":v"}} {
		if _, err := NewMogrifier(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// fillTagged hands over one of each kind.
func fillTagged(t *testing.T, s Sink) {
	t.Helper()
	r := NewRegistry(Options{Settings: Settings{ExtraTags: map[string]string{"ver": "1.2", "az": "b"}}})
	rule := Series{Name: RulePrefix + "d.a.b.total_hits", Tags: r.extra, suffix: r.extraSuffix}
	s.Count(rule, 3)
	s.Count(r.seriesOf("ratelimit.memcache.add", []Tag{{"code", "error"}}), 1)
	s.Gauge(r.seriesOf("ratelimit.go.alloc", nil), -5)
	s.Time(r.seriesOf("ratelimit_server.Check.response_time", nil), 3*time.Millisecond, 1)
	s.Time(r.seriesOf("ratelimit_server.Check.response_time", nil), time.Millisecond, 0.25)
	s.Count(NewRegistry(Options{}).seriesOf("plain", nil), 1)
	s.Flush()
}

var filledTagged = strings.Join([]string{
	"limits.total_hits:3|c|#az:b,ver:1_2,dom:d,rule:a.b",
	"ratelimit.memcache.add:1|c|#az:b,code:error,ver:1_2",
	"ratelimit.go.alloc:-5|g|#az:b,ver:1_2",
	"took:3.000000|ms|#az:b,ver:1_2,method:Check",
	"took:1.000000|ms|@0.250000|#az:b,ver:1_2,method:Check",
	"plain:1|c", "",
}, "\n")

func taggers(t *testing.T) []Mogrifier {
	return []Mogrifier{
		mogrifier(t, `^ratelimit\.service\.rate_limit\.([^.]+)\.(.+)\.([a-z_]+)$`, "limits.$3", "dom:$1,rule:$2"),
		mogrifier(t, `^ratelimit_server\.(\w+)\.response_time$`, "took", "method:$1"),
		mogrifier(t, `^ratelimit_server\.`, "never the second", ""),
	}
}

func TestTaggedUDP(t *testing.T) {
	t.Parallel()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer server.Close()
	s := NewTagged("udp", server.LocalAddr().String(), taggers(t), quiet())
	await.True(t, "ready", s.Ready)
	fillTagged(t, s)
	b := make([]byte, 64<<10)
	server.SetReadDeadline(time.Now().Add(time.Minute))
	n, _, err := server.ReadFrom(b)
	if d := cmp.Diff(filledTagged, string(b[:n])); d != "" || err != nil {
		t.Error(d, err)
	}
	if err := closing(t, s); err != nil {
		t.Error(err)
	}
}

func TestTaggedTCP(t *testing.T) {
	t.Parallel()
	ln := listen(t, "127.0.0.1:0")
	s := NewTagged("tcp", ln.Addr().String(), taggers(t), quiet())
	conn, err := ln.Accept()
	must.Succeed(t, err)
	defer conn.Close()
	await.True(t, "ready", s.Ready)
	fillTagged(t, s)
	if err := closing(t, s); err != nil {
		t.Error(err)
	}
	got, err := io.ReadAll(conn)
	if d := cmp.Diff(filledTagged, string(got)); d != "" || err != nil {
		t.Error(d, err)
	}
}

// FuzzMogrifier: whatever a template holds, its text and nothing else goes in.
func FuzzMogrifier(f *testing.F) {
	for _, s := range []string{"$1", "$0$2", "$", "$$1", "a$99999999999999999999b", "$1é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, template string) {
		out := expand(template, "ab", []int{0, 2, 0, 1, -1, -1}, nil)
		if !strings.Contains(template, "$") && out != template {
			t.Errorf("%q became %q", template, out)
		}
		if len(out) > 2*len(template)+2 {
			t.Errorf("%q became %q", template, out)
		}
	})
}
