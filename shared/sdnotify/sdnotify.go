// Package sdnotify reports the daemon's state to a service manager, by systemd's notification protocol.
//
// It never blocks: a message that cannot be sent at once is dropped. Without the variable NOTIFY_SOCKET it does
// nothing.
package sdnotify

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tick is how often a state is checked.
	tick = time.Second
	// extend is by how much each tick extends the time-out of a phase such as the start: the phase may last this much
	// longer from then on.
	extend = 30 * time.Second
)

// variables are the environment variables that a service manager sets. No child process inherits them.
var variables = []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}

// Notifier sends messages to the service manager. The methods of a nil Notifier do nothing.
type Notifier struct {
	conn     *net.UnixConn
	watchdog time.Duration // interval of the manager's watchdog; 0: none

	mu     sync.Mutex
	status string // the last status sent
	sent   time.Time
}

// New returns the Notifier that the environment configures; nil if there is no service manager. It removes its
// variables from the process's environment.
func New(environ []string) *Notifier {
	set := map[string]string{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		set[name] = value
	}
	for _, name := range variables {
		os.Unsetenv(name)
	}
	path := set["NOTIFY_SOCKET"]
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "@") {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil
	}
	n := &Notifier{conn: conn}
	usec, err := strconv.ParseInt(set["WATCHDOG_USEC"], 10, 64)
	if pid := set["WATCHDOG_PID"]; err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

// send sends the lines in one message. If the message cannot be sent at once, it is dropped.
func (n *Notifier) send(lines ...string) {
	if n == nil {
		return
	}
	raw, err := n.conn.SyscallConn()
	if err != nil {
		return
	}
	raw.Write(func(fd uintptr) bool {
		syscall.Write(int(fd), []byte(strings.Join(lines, "\n")))
		return true
	})
}

// Ready reports that the daemon serves requests, at the start and after a reload.
func (n *Notifier) Ready(status string) {
	n.send("READY=1", n.note(status))
}

// Reloading reports that the daemon reads its settings or rules again. Ready ends the reload.
func (n *Notifier) Reloading() {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	n.send("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

// Stopping reports that the daemon is shutting down.
func (n *Notifier) Stopping() { n.send("STOPPING=1", n.note("stopping")) }

// note stores a status as the last one sent, and returns the line that sends it.
func (n *Notifier) note(status string) string {
	if n == nil {
		return ""
	}
	status = strings.Join(strings.FieldsFunc(status, func(c rune) bool { return c == '\n' || c == '\r' }), "; ")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.status, n.sent = status, time.Now()
	return "STATUS=" + status
}

// Wait extends the manager's time-out of the current phase until stop is called. status says what the daemon waits for.
func (n *Notifier) Wait(status string) (stop func()) {
	if n == nil {
		return func() {}
	}
	return n.every(tick, func(context.Context) {
		n.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extend.Microseconds()), n.note(status))
	})
}

// Watch sends status when it changes, at most once a second. If the manager has a watchdog, Watch also reports that the
// daemon is alive, as long as alive returns no error. The function stop ends it.
func (n *Notifier) Watch(status func() string, alive func(context.Context) error) (stop func()) {
	if n == nil {
		return func() {}
	}
	stops := []func(){n.every(tick, func(context.Context) { n.show(status()) })}
	if half := n.watchdog / 2; half > 0 {
		stops = append(stops, n.every(half, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, half)
			defer cancel()
			if alive(ctx) == nil {
				n.send("WATCHDOG=1")
			}
		}))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// show sends a status, if it differs from the last one that was sent.
func (n *Notifier) show(status string) {
	n.mu.Lock()
	same := n.status == status || time.Since(n.sent) < tick
	n.mu.Unlock()
	if !same {
		n.send(n.note(status))
	}
}

// every calls f repeatedly until stop is called. stop waits until f has returned.
func (n *Notifier) every(pause time.Duration, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(pause)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				f(ctx)
			}
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-done
	})
}
