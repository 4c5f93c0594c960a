package sdnotify

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/shared/must"
)

// manager is the other end of the socket.
func manager(t *testing.T, name string) (environ string, next func() string) {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close() })
	return "NOTIFY_SOCKET=" + name, func() string {
		b := make([]byte, 4096)
		conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		n, err := conn.Read(b)
		must.Succeed(t, err)
		return string(b[:n])
	}
}

func TestNotifier(t *testing.T) {
	t.Parallel()
	for _, name := range []string{filepath.Join(t.TempDir(), "s"), "@gatehouse-test-" + strconv.Itoa(os.Getpid())} {
		environ, next := manager(t, name)
		n := New([]string{environ})
		want := func(pattern string) {
			t.Helper()
			if got := next(); !regexp.MustCompile("^(" + pattern + ")$").MatchString(got) {
				t.Errorf("sent %q, want %s", got, pattern)
			}
		}
		stop := n.Wait("waiting")
		want("EXTEND_TIMEOUT_USEC=30000000\nSTATUS=waiting")
		stop()
		n.Ready("serving\nit")
		want("READY=1\nSTATUS=serving; it")
		n.Reloading()
		want(`RELOADING=1\nMONOTONIC_USEC=\d{4,}`)
		n.Stopping()
		want("STOPPING=1\nSTATUS=stopping")
	}
}

// A status is sent when it changes, and a sign of life only while there is one.
func TestNotifier_watch(t *testing.T) {
	t.Parallel()
	environ, next := manager(t, filepath.Join(t.TempDir(), "s"))
	n := New([]string{environ, "WATCHDOG_USEC=20000", "WATCHDOG_PID=" + strconv.Itoa(os.Getpid())})
	var well, asked atomic.Int64
	stop := n.Watch(func() string { return "same" }, func(context.Context) error {
		asked.Add(1)
		if well.Load() == 0 {
			return errors.New("hangs")
		}
		return nil
	})
	defer stop()
	if got := next(); got != "STATUS=same" || asked.Load() == 0 {
		t.Errorf("%q after %d checks that failed", got, asked.Load())
	}
	well.Store(1)
	if got := next(); got != "WATCHDOG=1" {
		t.Errorf("%q", got)
	}
}

// A manager that does not read holds nothing up.
func TestNotifier_full(t *testing.T) {
	t.Parallel()
	environ, _ := manager(t, filepath.Join(t.TempDir(), "s"))
	n := New([]string{environ})
	for range 10000 {
		n.Ready("serving")
	}
}

// No child process inherits what the manager set for this one.
func TestNew_children(t *testing.T) {
	for _, name := range variables {
		t.Setenv(name, "1")
	}
	New(os.Environ())
	for _, name := range variables {
		if value, set := os.LookupEnv(name); set {
			t.Errorf("%s=%s is inherited", name, value)
		}
	}
}

func TestNew_none(t *testing.T) {
	t.Parallel()
	for _, environ := range [][]string{nil, {"NOTIFY_SOCKET="}, {"NOTIFY_SOCKET=relative"}, {"NOTIFY_SOCKET=/nowhere/s"}} {
		n := New(environ)
		if n != nil {
			t.Errorf("%v: a notifier", environ)
		}
		n.Ready("x")
		n.Reloading()
		n.Stopping()
		n.Wait("x")()
		n.Watch(nil, nil)()
	}
	if n := New([]string{"NOTIFY_SOCKET=/dev/null", "WATCHDOG_PID=1", "WATCHDOG_USEC=1"}); n != nil && n.watchdog != 0 {
		t.Error("the watchdog of another process")
	}
}
