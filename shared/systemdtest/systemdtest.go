// Package systemdtest replaces systemd in tests of the daemons: it reads their units, and is the other end of the
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

// Unit is the contents of a service unit: all values of each key, in order.
type Unit map[string][]string

// Read reads a unit. oldnew, pairs as for strings.NewReplacer, are first replaced in its text: a mutation.
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

// Environment returns the service's environment as the unit sets it, where %d is a folder with the given credentials,
// by name. A missing credential fails the test, as it fails a start.
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

// Manager is the service manager's end of the socket.
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

// Environment returns what the manager adds to a service's environment, with a watchdog of the given period; 0: none.
func (m *Manager) Environment(watchdog time.Duration) []string {
	env := []string{"NOTIFY_SOCKET=" + m.path}
	if watchdog > 0 {
		env = append(env, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))
	}
	return env
}

// Next returns the next message; "" if none comes within patience.
func (m *Manager) Next(patience time.Duration) string {
	b := make([]byte, 4096)
	m.conn.SetReadDeadline(time.Now().Add(patience))
	n, err := m.conn.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// Await waits for a message of the given form and returns the messages before it.
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
