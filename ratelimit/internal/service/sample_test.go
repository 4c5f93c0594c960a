package service

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/rls"
)

// debugLog is a log of JSON lines, debug level and up.
func debugLog(level slog.Level) (*bytes.Buffer, *slog.Logger) {
	var b bytes.Buffer
	return &b, slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{Level: level}))
}

// A line of the debug log shows what was sent, the verdict and the rule.
func TestSample(t *testing.T) {
	log, logger := debugLog(slog.LevelDebug)
	r := newRig(t,
		`[{key: k, value: a, @1}, {key: path, descriptors: [{key: user, @5}]}, {key: open}, {key: old, rate_limit: {name: old, unit: day, requests_per_unit: 1}},
		{key: new, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: old}]}}]`, Options{Log: logger})
	f := func(c *Call, want map[string]any) {
		t.Helper()
		r.now++
		log.Reset()
		r.Decide(t.Context(), c, r.Now())
		got := map[string]any{}
		lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
		if err := json.Unmarshal(lines[len(lines)-1], &got); err != nil { // a warning may come before
			t.Fatalf("%v in %q", err, log)
		}
		want["level"], want["msg"] = "DEBUG", "request"
		delete(got, "time")
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("want (-), got (+):\n%s", d)
		}
	}
	f(call("d", "(k,a)|(path,/a)(user,ann)|(open,1)|(k,b)|(path,/)|(open,1)(x,y)"),
		map[string]any{"domain": "d", "code": "OK",
			"descriptors": "k=a OK by d.k_a (rules.yaml:2:16); path=/a,user=ann OK by d.path.user " +
				"(rules.yaml:2:112); open=1 OK whitelisted; " +
				"k=b OK no_match; path=/ OK too_shallow; open=1,x=y OK too_deep"})
	f(call("d", "(k,a)|(old,1)|(new,1)"), map[string]any{"domain": "d", "code": "OVER_LIMIT",
		"descriptors": "k=a OVER_LIMIT by d.k_a (rules.yaml:2:16); old=1 OK replaced; new=1 OK by d.new " +
			"(rules.yaml:3:4)"})
	f(call("no\xffbody", "(k,a b)|(k,\"x\xff\n)"), map[string]any{"domain": `no\xffbody`, "code": "OK",
		"descriptors": `k="a b" OK unknown_domain; k="\"x\xff\n" OK unknown_domain`})
	own := call("d", "(any,1)")
	own.Request.Descriptors[0].HasLimit, own.Request.Descriptors[0].Limit = true,
		rls.Override{PerUnit: 7, Unit: rls.Hour}
	own.Request.Descriptors = append(own.Request.Descriptors, rls.Descriptor{})
	f(own, map[string]any{"domain": "d", "code": "OK",
		"descriptors": "any=1 OK by a limit of its own, 7/hour; (no entries) OK no_entries"})

	// The Call held another request's rules before.
	own.Request.Domain = ""
	f(own, map[string]any{"domain": "", "error": "rate limit domain must not be empty",
		"descriptors": "any=1; (no entries)"})
	r.store.err = errors.New("down")
	f(call("d", "(k,a)|(k,b)"), map[string]any{"domain": "d", "error": "rate limit store is unavailable",
		"descriptors": "k=a by d.k_a (rules.yaml:2:16); k=b no_match"})

	// The rules are replaced while the store is asked.
	r.store.err = nil
	r.awaitStore()
	c := call("d", "(k,a)|(k,b)")
	if asks, err := r.Begin(t.Context(), c, r.Now()); !asks || err != nil {
		t.Fatal(asks, err)
	}
	log.Reset()
	r.load(t, "domain: e\ndescriptors: [{key: k, @1}]")
	store, batch := r.Pending(c)
	if err := r.Complete(c, store.Add(t.Context(), batch), r.Now()); err != nil || !strings.Contains(log.String(),
		"k=b OK no_match") {
		t.Errorf("%v, %s", err, log)
	}
}

// However long and odd a request is, its line is bounded and UTF-8.
func TestSample_isBounded(t *testing.T) {
	log, logger := debugLog(slog.LevelDebug)
	r := newRig(t, `[{key: k, @1}]`, Options{Log: logger})
	c := call(strings.Repeat("d", 5000), "(k,"+strings.Repeat("é", 5000)+")")
	for range 255 {
		c.Request.Descriptors = append(c.Request.Descriptors,
			call("", strings.Repeat("(k,"+strings.Repeat("\xff", 5000)+")", 64)).Request.Descriptors[0])
	}
	r.Decide(t.Context(), c, r.Now())
	if n := log.Len(); n < maxSample || n > 4*maxSample || !utf8.Valid(log.Bytes()) ||
		!strings.Contains(log.String(), "more") {
		t.Errorf("a line of %d bytes: %.200q", n, log)
	}
	if !strings.Contains(log.String(), "k="+strings.Repeat("é", maxSampleText/2)+"…") {
		t.Errorf("the first value is not cut: %.300q", log)
	}
}

// At most ten requests are logged in any second; the next one says how many were not.
func TestSample_rate(t *testing.T) {
	log, logger := debugLog(slog.LevelDebug)
	r := newRig(t, `[{key: k, @1}]`, Options{Log: logger})
	for i := range 25 {
		r.Decide(t.Context(), call("d", fmt.Sprintf("(x,%d)", i)), r.Now())
	}
	if n := strings.Count(log.String(), "\n"); n != 10 {
		t.Errorf("%d lines in a second, want 10", n)
	}
	r.now++
	for range 2 {
		r.Decide(t.Context(), call("d", "(k,1)"), r.Now())
	}
	if text := log.String(); strings.Count(text, "\n") != 12 || strings.Count(text, `"skipped":15`) != 1 ||
		strings.Count(text, "skipped") != 1 {
		t.Errorf("in the next second: %s", text)
	}
}

// Above debug level nothing is sampled.
func TestSample_off(t *testing.T) {
	log, logger := debugLog(slog.LevelInfo)
	r := newRig(t, `[{key: k, @1}]`, Options{Log: logger})
	r.Decide(t.Context(), call("d", "(k,1)"), r.Now())
	if log.Len() > 0 || r.sampler != nil {
		t.Errorf("%s", log)
	}
}
