package daemon

import (
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/logtest"
)

// The reminder comes again and again until there are rules, and ends with the daemon.
func TestRemindOfRules(t *testing.T) {
	t.Parallel()
	var log logtest.Buffer
	d := &daemon{log: newLogger(&log, "WARN", "json")}
	loaded := make(chan struct{})
	stop := d.remindOfRules(t.Context(), loaded, time.Millisecond, 2*time.Millisecond)
	await.True(t, "three reminders", func() bool { return strings.Count(log.String(), "no rules yet") >= 3 })
	close(loaded)
	stop()
	n := strings.Count(log.String(), "no rules yet")
	time.Sleep(10 * time.Millisecond)
	if got := strings.Count(log.String(), "no rules yet"); got != n {
		t.Errorf("%d reminders after the rules came", got-n)
	}
	d.remindOfRules(t.Context(), make(chan struct{}), time.Hour, time.Hour)()
}
