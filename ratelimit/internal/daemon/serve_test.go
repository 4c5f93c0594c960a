package daemon

import (
	"context"
	"net"
	"net/http"
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

// The watchdog gets no sign of life where a listener's goroutines hang, that of HTTP or that of gRPC: connections are
// open, and nothing answers.
func TestAlive_hangs(t *testing.T) {
	t.Parallel()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	hung, answers := listen(), listen()
	go http.Serve(answers, http.NotFoundHandler()) // any status will do
	for name, l := range map[string]*listeners{"HTTP": {httpAt: hung, grpcAt: hung}, "gRPC": {httpAt: answers, grpcAt: hung}} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := new(daemon).alive(ctx, l); err == nil {
			t.Errorf("%s hangs, and the daemon counts as alive", name)
		}
	}
}
