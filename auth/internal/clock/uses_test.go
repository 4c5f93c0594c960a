package clock_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// machineClock are the files that may read the machine's clock, each with the reason. Durations by the monotonic clock
// are the same on every machine.
var machineClock = map[string]string{
	"internal/cli/keys.go":          "a token signed with JWT_SECRET alone needs no database",
	"internal/cli/mail_preview.go":  "sample mails, without a database",
	"internal/clock/clock.go":       "readings are what the clock is made of",
	"internal/daemon/database.go":   "monotonic: patience of a start",
	"internal/daemon/hooks_try.go":  "a sample for hooks",
	"internal/daemon/serve.go":      "monotonic: duration of a stop, for the log",
	"internal/daemon/watch.go":      "monotonic: durations of calls, for metrics",
	"internal/hook/hook.go":         "the default of tests",
	"internal/httpapi/call.go":      "monotonic: durations of requests, and the pace of log lines",
	"internal/httpapi/health.go":    "monotonic: how long an answer is reused",
	"internal/httpapi/httpapi.go":   "monotonic: deadlines; the default of tests",
	"internal/httpapi/observe.go":   "monotonic: durations of requests",
	"internal/mail/lint.go":         "a sample mail is rendered",
	"internal/mail/render.go":       "the default of tests",
	"internal/mail/smtp.go":         "monotonic: a deadline",
	"internal/mail/smtptest/":       "a server of tests",
	"internal/mirror/check.go":      "a reminder after thirty days",
	"internal/mirror/install.go":    "monotonic: a duration, for people",
	"internal/password/":            "monotonic: pauses and durations of the hashing process",
	"internal/provider/settings.go": "the default of tests",
	"internal/store/cancel.go":      "monotonic: deadlines",
	"internal/store/keys.go":        "monotonic: the ends of a reading",
	"internal/store/pool.go":        "monotonic: how long the pool does not grow",
	"internal/takeover/":            "it keeps its own rules: times of the former service's database count",
}

// What decides something goes by the database's clock: the machine's is read only where a reason is listed.
func TestUses(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	reads := regexp.MustCompile(`\btime\.(Now|Since|Until)\b`)
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		text, err := os.ReadFile(path)
		if err != nil || !reads.Match(text) || allowed(name) {
			return err
		}
		t.Errorf("%s reads the machine's clock: use clock.Clock, or list the reason here", name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func allowed(name string) bool {
	for prefix := range machineClock {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
