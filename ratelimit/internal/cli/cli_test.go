package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/must"
)

// A start that is refused says so in the form of the log.
func TestReport(t *testing.T) {
	f := func(environ []string, want ...string) {
		t.Helper()
		var out, errs strings.Builder
		if status := (Program{}).run(t.Context(), []string{"ratelimit"}, environ, &out, &errs); status != exitFailed ||
			out.Len() > 0 {
			t.Errorf("%q: exit status %d, on stdout %q", environ, status, out.String())
		}
		got := regexp.MustCompile(`"@timestamp":"[^"]*"`).ReplaceAllString(errs.String(), `"@timestamp":T`)
		if d := cmp.Diff(want, strings.SplitAfter(strings.TrimSuffix(got, "\n"), "\n")); d != "" {
			t.Errorf("%q: %s", environ, d)
		}
	}
	f([]string{"BACKEND_TYPE=memory", "PORT=x", "DEBUG_PORT=-1", "LOG_LEVLE=info"},
		"ratelimit: warning: LOG_LEVLE is no setting of this program and has no effect; did you mean LOG_LEVEL?\n",
		"ratelimit: settings: 2 errors:\n",
		"  PORT=\"x\": not a whole number, such as 10 or 0x10\n",
		"  DEBUG_PORT=\"-1\": must be at least 0")
	f([]string{"BACKEND_TYPE=memory", "PORT=x", "LOG_FORMAT=Json", "LOG_LEVEL=panic", "LOG_LEVLE=info"},
		`{"@timestamp":T,"level":"warning","@message":"LOG_LEVLE is no setting of this program and has no effect; did you mean LOG_LEVEL?"}`+"\n",
		`{"@timestamp":T,"level":"fatal","@message":"settings: PORT=\"x\": not a whole number, such as 10 or 0x10"}`)
}

// A report for programs that was not written whole is a failure.
func TestReports_fullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	port := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{}`) }))
	defer port.Close()
	file := filepath.Join(t.TempDir(), "a.yaml")
	rules := "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
	must.Succeed(t, os.WriteFile(file, []byte(rules), 0o644))
	for _, command := range []string{"schema", "check -format json FILE", "diff -format json FILE FILE",
		"explain -format json -domain d -descriptors k=v FILE", "replay -format json -rules FILE /dev/null",
		"counters get -debug_url " + port.URL + " -format json -domain d -descriptors k=v"} {
		var errs strings.Builder
		args := strings.Fields("ratelimit " + strings.ReplaceAll(command, "FILE", file))
		got := (Program{}).run(t.Context(), args, nil, full, &errs)
		if got != exitFailed || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%s: exit status %d, %q", command, got, errs.String())
		}
	}
}

// Each command's -h begins with its usage and ends with an example that begins with the program's name.
func TestHelp(t *testing.T) {
	for _, command := range []string{"check", "client", "counters", "counters get", "diff", "explain", "health", "replay",
		"schema", "tap"} {
		var out strings.Builder
		args := append([]string{"ratelimit"}, append(strings.Fields(command), "-h")...)
		status := (Program{}).run(t.Context(), args, nil, &out, &out)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		name, _, _ := strings.Cut(command, " ")
		if status != exitOK || !strings.HasPrefix(lines[0], "usage: ratelimit "+name) ||
			!strings.HasPrefix(lines[len(lines)-1], "example: ratelimit "+name) {
			t.Errorf("%s -h: exit status %d\n%s", command, status, out.String())
		}
	}
}
