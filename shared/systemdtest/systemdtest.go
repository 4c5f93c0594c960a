// Package systemdtest stands in for systemd in tests of the daemons: it reads their units, and receives their messages
// at the notification socket.
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

// Unit has the settings of a service unit: for each key all its values, in order.
type Unit map[string][]string

// Read reads a unit file. oldnew are pairs of texts: in the file's text, the first of each pair is replaced by the
// second before it is parsed, so that a test can show that a check fails.
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

// Environment returns the environment that the unit gives its service. %d in it becomes a folder that has the given
// credentials, by name. A credential that the unit loads but that is not given fails the test, as it would fail the
// service's start.
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

// Manager is systemd's end of the notification socket.
type Manager struct {
	conn *net.UnixConn
	path string
}

// NewManager creates a notification socket and listens on it until the test ends.
func NewManager(t testing.TB) *Manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // a path below t.TempDir may be too long for a socket
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

// Environment returns what systemd adds to a service's environment. watchdog is the period of the watchdog; 0 means no
// watchdog.
func (m *Manager) Environment(watchdog time.Duration) []string {
	env := []string{"NOTIFY_SOCKET=" + m.path}
	if watchdog > 0 {
		env = append(env, fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds()))
	}
	return env
}

// Next returns the next message; "" if none arrives within patience.
func (m *Manager) Next(patience time.Duration) string {
	b := make([]byte, 4096)
	m.conn.SetReadDeadline(time.Now().Add(patience))
	n, err := m.conn.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// Await waits for a message that, as a whole, matches the regular expression in form. It returns the messages that
// arrived before it.
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

// Drain discards the messages that have arrived.
func (m *Manager) Drain() {
	for m.Next(time.Millisecond) != "" {
	}
}
