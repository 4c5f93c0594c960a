package test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// put writes a file below dir, with its directories.
func put(t testing.TB, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
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
	must.Succeed(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must.Succeed(t, err)
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
		must.Succeed(t, p.Signal(syscall.SIGTERM))
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
