// Package systemdtest stands in for systemd in tests of the daemons: it reads their units, and is the other end of the
// notification socket.
package systemdtest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Unit is what a service unit says: all values of a key, in order.
type Unit map[string][]string

// Read reads a unit. oldnew, pairs as strings.NewReplacer has them, are replaced first: a mutation.
func Read(t testing.TB, file string, oldnew ...string) (u Unit, text string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = strings.NewReplacer(oldnew...).Replace(string(b))
	u = Unit{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(key, "#") {
			u[key] = append(u[key], value)
		}
	}
	return u, text
}

// Environment is that of the service: what the unit sets, %d being a folder of its credentials, whose texts are given by
// name. A credential that is not given fails the test, as it ends a start.
func (u Unit) Environment(t testing.TB, credentials map[string]string) (env []string) {
	t.Helper()
	dir := t.TempDir()
	for _, load := range u["LoadCredential"] {
		name, path, _ := strings.Cut(load, ":")
		text, ok := credentials[name]
		if !ok || filepath.Base(path) != name {
			t.Fatalf("LoadCredential=%s: no such credential", load)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range u["Environment"] {
		for pair := range strings.FieldsSeq(line) {
			env = append(env, strings.ReplaceAll(pair, "%d", dir))
		}
	}
	return env
}

// Manager is the other end of the socket.
type Manager struct {
	conn *net.UnixConn
	path string
}

// NewManager listens.
func NewManager(t testing.TB) *Manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // a path of t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		os.RemoveAll(dir)
	})
	return &Manager{conn: conn, path: path}
}

// Environment is what the manager adds to a service's, with a watchdog of so long; 0: none.
func (m *Manager) Environment(watchdog time.Duration) []string {
	env := []string{"NOTIFY_SOCKET=" + m.path}
	if watchdog > 0 {
		env = append(env, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))
	}
	return env
}

// Next is the next message; "" when none came in so long.
func (m *Manager) Next(patience time.Duration) string {
	b := make([]byte, 4096)
	m.conn.SetReadDeadline(time.Now().Add(patience))
	n, err := m.conn.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// Await waits for a message of that form and returns those before it.
func (m *Manager) Await(t testing.TB, form string) (before []string) {
	t.Helper()
	want := regexp.MustCompile("^(?:" + form + ")$")
	deadline := time.Now().Add(60 * time.Second)
	for {
		message := m.Next(time.Until(deadline))
		if want.MatchString(message) {
			return before
		}
		if message == "" {
			t.Fatalf("no message %s, but %q", form, before)
		}
		before = append(before, message)
	}
}

// Drain discards the messages that have already arrived.
func (m *Manager) Drain() {
	for m.Next(time.Millisecond) != "" {
	}
}
