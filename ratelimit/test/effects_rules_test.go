package test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"gatehouse/shared/await"
)

// put writes a file below dir, with its directories.
func put(t testing.TB, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rlconfig is what the daemon has in force.
func (p *process) rlconfig(t testing.TB) string {
	t.Helper()
	_, body := get(t, p.debug+"/rlconfig?format=json")
	return body
}

// post sends a request for domain d to /json and reads the answer.
func (p *process) post(t testing.TB, body string) (*http.Response, string) {
	t.Helper()
	client := http.Client{Timeout: 20 * time.Second}
	resp, err := client.Post("http://"+p.http+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

const oneDescriptor = `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`

var _ = effect("RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY", func(t *testing.T) {
	root := t.TempDir()
	put(t, root, "a/b/rules.yaml", "domain: deep")
	put(t, root, "a/config/rules.yaml", "domain: default")
	put(t, root, "rules.yaml", "domain: top")
	for env, want := range map[[3]string]string{{root, "a", "b"}: "deep", {root + "/a", "", "b"}: "deep",
		{root, "a", ""}: "default", {root, "", "."}: "top"} {
		p := start(t, "", map[string]string{"RUNTIME_ROOT": env[0], "RUNTIME_SUBDIRECTORY": env[1],
			"RUNTIME_APPDIRECTORY": env[2]})
		if got := p.rlconfig(t); !strings.Contains(got, `"domain": "`+want+`"`) || strings.Count(got, `"domain"`) != 1 {
			t.Errorf("%q: %s", env, got)
		}
	}
})

var _ = effect("RUNTIME_IGNOREDOTFILES", func(t *testing.T) {
	root := t.TempDir()
	put(t, root, "config/a.yaml", "domain: plain")
	put(t, root, "config/.b.yaml", "domain: dotted")
	for ignored, want := range map[string]bool{"false": true, "true": false} {
		p := start(t, "", map[string]string{"RUNTIME_ROOT": root, "RUNTIME_APPDIRECTORY": "config",
			"RUNTIME_IGNOREDOTFILES": ignored})
		if got := p.rlconfig(t); strings.Contains(got, "dotted") != want || !strings.Contains(got, "plain") {
			t.Errorf("%s: %s", ignored, got)
		}
	}
})

// With it the link is watched, else what lies in the directory.
var _ = effect("RUNTIME_WATCH_ROOT", func(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "v1/config/rules.yaml", "domain: one\n")
	put(t, dir, "v2/config/rules.yaml", "domain: two\n")
	current := filepath.Join(dir, "current")
	if err := os.Symlink("v1", current); err != nil {
		t.Fatal(err)
	}
	p := start(t, "", map[string]string{"RUNTIME_ROOT": current, "RUNTIME_APPDIRECTORY": "config",
		"RUNTIME_WATCH_ROOT": "true"})
	if got := p.rlconfig(t); !strings.Contains(got, `"config.rules.yaml"`) {
		t.Errorf("files are called otherwise: %s", got)
	}
	if err := os.Symlink("v2", current+".next"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(current+".next", current); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the swap", func() bool { return strings.Contains(p.rlconfig(t), `"two"`) })

	p = start(t, "", map[string]string{"RUNTIME_ROOT": current, "RUNTIME_APPDIRECTORY": "config",
		"RUNTIME_WATCH_ROOT": "false"})
	if got := p.rlconfig(t); !strings.Contains(got, `"rules.yaml"`) {
		t.Errorf("files are called otherwise: %s", got)
	}
	put(t, dir, "v2/config/rules.yaml", "domain: three\n")
	await.True(t, "the edit", func() bool { return strings.Contains(p.rlconfig(t), `"three"`) })
})

var _ = effect("RUNTIME_REFUSE_EMPTY", func(t *testing.T) {
	for refuse, want := range map[string]string{"true": "RUNTIME_REFUSE_EMPTY",
		"false": "NO CONFIGURATION FILES ANY MORE"} {
		p := start(t, `[{key: k, @1/y}]`, map[string]string{"RUNTIME_REFUSE_EMPTY": refuse})
		if err := os.Remove(filepath.Join(p.rules, "rules.yaml")); err != nil {
			t.Fatal(err)
		}
		p.log.await(t, want, nil)
		limited := refuse == "true"
		await.True(t, "rules as they should be",
			func() bool { return strings.Contains(p.rlconfig(t), `"key": "d.k"`) == limited })
	}
})

var _ = effect("MERGE_DOMAIN_CONFIG", func(t *testing.T) {
	root := t.TempDir()
	put(t, root, "config/a.yaml", "domain: d\ndescriptors: [{key: a}]")
	put(t, root, "config/b.yaml", "domain: d\ndescriptors: [{key: b}]")
	env := map[string]string{"RUNTIME_ROOT": root, "RUNTIME_APPDIRECTORY": "config", "MERGE_DOMAIN_CONFIG": "true"}
	if got := start(t, "", env).rlconfig(t); !strings.Contains(got, `"d.a"`) || !strings.Contains(got, `"d.b"`) {
		t.Error(got)
	}
	env["MERGE_DOMAIN_CONFIG"] = "false"
	launch(t, "", env).log.await(t, "the domain is already configured in a.yaml", nil)
})

var _ = effect("FORCE_START_WITHOUT_INITIAL_CONFIG", func(t *testing.T) {
	const bad = `[{key: k, surprise: 1}]`
	p := start(t, bad, map[string]string{"FORCE_START_WITHOUT_INITIAL_CONFIG": "true"})
	if resp, body := p.post(t, oneDescriptor); resp.StatusCode != 400 ||
		!strings.Contains(body, "no rate limit configuration loaded") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	p = launch(t, bad, nil)
	p.log.await(t, "configuration refused", nil)
	p.log.await(t, "still no valid rules: the gRPC and HTTP listeners open with the first", nil)
	if strings.Contains(p.log.text(), `"ready"`) {
		t.Error("ready without rules")
	}
	p.write(t, `[{key: k, @1/y}]`)
	p.log.await(t, `"ready"`, nil)
})

var _ = effect("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", func(t *testing.T) {
	for value, want := range map[string]int{"true": 500, "false": 200} {
		p := start(t, "", map[string]string{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": value})
		if got, _ := get(t, p.http+"/healthcheck"); got != want {
			t.Errorf("%s: no domain, %d, want %d", value, got, want)
		}
		p.write(t, `[{key: k, @1/y}]`)
		await.True(t, "healthy with a domain", func() bool {
			got, _ := get(t, p.http+"/healthcheck")
			return got == 200
		})
	}
})

var _ = effect("LOG_LEVEL", func(t *testing.T) {
	for level, want := range map[string]string{"warning": `"level":"warning"`, "error": `"level":"error"`} {
		p := launch(t, `[{key: k, surprise: 1}]`, map[string]string{"LOG_LEVEL": level, "KVSTORE_PIPELINE_LIMIT": "8"})
		p.log.await(t, "configuration refused", nil)
		p.write(t, `[{key: k, @1/y}]`) // which info would log
		if err := p.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-p.Ended()
		text := p.log.text()
		if !strings.Contains(text, want) || strings.Contains(text, `"level":"info"`) || level == "error" &&
			strings.Contains(text, `"warning"`) {
			t.Errorf("%s:\n%s", level, text)
		}
	}
	for _, level := range []string{"debug", "trace"} { // what a client sends, with the verdict and the rule
		p := start(t, `[{key: k, @1/y}]`, map[string]string{"LOG_LEVEL": level})
		askFor(t, p.dial(t), "d", 1, "k=v", "kk=v")
		p.log.await(t, `"@message":"request","domain":"d","code":"OK","descriptors":"k=v OK by d.k (`, nil)
		p.log.await(t, `; kk=v OK no_match"`, nil)
	}
})

var _ = effect("LOG_FORMAT", func(t *testing.T) {
	p := launch(t, `[{key: k, @1/y}]`, map[string]string{"LOG_FORMAT": "text"})
	p.log.await(t, `level=info msg="configuration loaded"`, nil)
	p = launch(t, `[{key: k, @1/y}]`, map[string]string{"LOG_FORMAT": "JSON"})
	p.log.await(t, `"level":"info","@message":"configuration loaded"`, nil)
})

var _ = effect("SHADOW_MODE", func(t *testing.T) {
	c := start(t, `[{key: k, @1/y}]`, map[string]string{"SHADOW_MODE": "true"}).dial(t)
	decide1(t, c, "k", "v")
	if got := decide1(t, c, "k", "v"); got.OverallCode != pb.RateLimitResponse_OK ||
		got.Statuses[0].Code != pb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("%v", got)
	}
})

var _ = effect("QUOTA_MODE", func(t *testing.T) {
	for value, want := range map[string]pb.RateLimitResponse_Code{"true": pb.RateLimitResponse_OK,
		"false": pb.RateLimitResponse_OVER_LIMIT} {
		c := start(t, `[{key: a, @0/y}, {key: b, @9/y}]`, map[string]string{"QUOTA_MODE": value}).dial(t)
		both := request("a", "v")
		both.Descriptors = append(both.Descriptors,
			&ratelimitpb.RateLimitDescriptor{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "b", Value: "v"}}})
		if got, err := c.ShouldRateLimit(t.Context(), both); err != nil || got.OverallCode != want {
			t.Errorf("%s: %v, %v, want %v", value, got, err, want)
		}
	}
})

var _ = effect("RESPONSE_DYNAMIC_METADATA", func(t *testing.T) {
	for value, want := range map[string]string{"true": "gold", "false": ""} {
		c := start(t, `[{key: k, metadata: {plan: gold}, @9/y}]`,
			map[string]string{"RESPONSE_DYNAMIC_METADATA": value}).dial(t)
		if got := decide1(t, c, "k", "v"); strings.Contains(got.GetDynamicMetadata().String(), "gold") != (want != "") {
			t.Errorf("%s: %v", value, got)
		}
	}
})

var _ = effect("UNKNOWN_DOMAIN", func(t *testing.T) {
	for value, want := range map[string]int{"deny": 429, "allow": 200} {
		p := start(t, `[{key: k, @1/y}]`, map[string]string{"UNKNOWN_DOMAIN": value})
		if resp, body := p.post(t, strings.Replace(oneDescriptor, `"d"`, `"other"`, 1)); resp.StatusCode != want {
			t.Errorf("%s: %d %s", value, resp.StatusCode, body)
		}
	}
})

var _ = effect("LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER",
	func(t *testing.T) {
		names := func(env map[string]string) string {
			var all []string
			for _, h := range decide1(t, start(t, `[{key: k, @9/y}]`, env).dial(t), "k", "v").ResponseHeadersToAdd {
				all = append(all, h.Key)
			}
			return strings.Join(all, " ")
		}
		env := map[string]string{"LIMIT_RESPONSE_HEADERS_ENABLED": "false"}
		if got := names(env); got != "" {
			t.Errorf("off: %s", got)
		}
		env["LIMIT_RESPONSE_HEADERS_ENABLED"] = "true"
		if got := names(env); got != "RateLimit-Limit RateLimit-Remaining RateLimit-Reset" {
			t.Errorf("on: %s", got)
		}
		env["LIMIT_LIMIT_HEADER"], env["LIMIT_REMAINING_HEADER"], env["LIMIT_RESET_HEADER"] = "X-L", "X-Left", "X-R"
		if got := names(env); got != "X-L X-Left X-R" {
			t.Errorf("renamed: %s", got)
		}
	})

var _ = effect("LIMIT_RESPONSE_HEADERS_STYLE", func(t *testing.T) {
	for style, want := range map[string]string{
		"draft":  `RateLimit-Policy: "9-per-year";q=9;w=31536000, RateLimit: "9-per-year";r=8;`,
		"legacy": "RateLimit-Limit: 9, RateLimit-Remaining: 8, RateLimit-Reset: ",
	} {
		p := start(t, `[{key: k, @9/y}]`, map[string]string{"LIMIT_RESPONSE_HEADERS_ENABLED": "true",
			"LIMIT_RESPONSE_HEADERS_STYLE": style})
		var all []string
		for _, h := range decide1(t, p.dial(t), "k", "v").ResponseHeadersToAdd {
			all = append(all, h.Key+": "+h.Value)
		}
		if got := strings.Join(all, ", "); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", style, got)
		}
		resp, _ := p.post(t, oneDescriptor)
		if got := resp.Header.Get("RateLimit-Policy") != ""; got != (style == "draft") {
			t.Errorf("%s: the answer of /json has a policy: %v", style, got)
		}
	}
})

var _ = effect("LIMIT_RETRY_AFTER_ENABLED", func(t *testing.T) {
	for value, want := range map[string]bool{"true": true, "false": false} {
		p := start(t, `[{key: k, @1/d}]`, map[string]string{"LIMIT_RETRY_AFTER_ENABLED": value})
		decide1(t, p.dial(t), "k", "v")
		if got := len(decide1(t, p.dial(t), "k", "v").ResponseHeadersToAdd) > 0; got != want {
			t.Errorf("%s: the message has a header: %v", value, got)
		}
		resp, body := p.post(t, oneDescriptor)
		wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if resp.StatusCode != 429 || (err == nil && 1 <= wait && wait <= 86400) != want {
			t.Errorf("%s: %d, Retry-After %q, %s", value, resp.StatusCode, resp.Header.Get("Retry-After"), body)
		}
	}
})
