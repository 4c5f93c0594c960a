package test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/systemdtest"
)

// The daemon with what its unit sets. The other end of the socket hears of the start, a start that waits for rules,
// reloads good and bad, and the stop; a sign of life only while the process runs, under load too.
func TestSystemd(t *testing.T) {
	t.Parallel()
	unit, _ := systemdtest.Read(t, "deploy/systemd/gatehouse-ratelimit.service")
	if got := unit["ExecStart"]; !slices.Equal(got, []string{"/usr/bin/gatehouse-ratelimit"}) {
		t.Fatalf("ExecStart %q", got)
	}
	m := systemdtest.NewManager(t)
	env := map[string]string{}
	for _, pair := range slices.Concat(unit.Environment(t, nil), m.Environment(2*time.Second)) {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	if filepath.Join(env["RUNTIME_ROOT"], env["RUNTIME_SUBDIRECTORY"], env["RUNTIME_APPDIRECTORY"]) != "/etc/gatehouse/rules" {
		t.Errorf("rules of the unit: %v", env)
	}
	root := t.TempDir()
	env["RUNTIME_ROOT"] = root
	rules := filepath.Join(root, "rules")
	put := func(text string) {
		t.Helper()
		must.Succeed(t, os.MkdirAll(rules, 0o755))
		must.Succeed(t, os.WriteFile(filepath.Join(rules, "shop.yaml"), []byte(text), 0o644))
	}
	const good = "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000000}}\n"
	put("domain: [\n")
	d := launch(t, "", env)
	m.Await(t, `EXTEND_TIMEOUT_USEC=30000000\nSTATUS=waiting for the store and the rules`)
	put(good)
	m.Await(t, `READY=1\nSTATUS=serving, 1 rules, store up`)
	d.awaitReady(t)
	m.Await(t, "WATCHDOG=1")
	if text := d.log.text(); strings.Contains(text, "NOTIFY_SOCKET") || strings.Contains(text, "WATCHDOG") {
		t.Errorf("the variables of systemd are warned of:\n%s", text)
	}

	var load sync.WaitGroup
	done := make(chan struct{})
	client := d.dial(t)
	for range 16 {
		load.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					client.ShouldRateLimit(t.Context(), request("user", "ann"))
				}
			}
		})
	}
	m.Await(t, "WATCHDOG=1")
	m.Await(t, "WATCHDOG=1")
	close(done)
	load.Wait()

	d.Signal(syscall.SIGHUP)
	m.Await(t, `RELOADING=1\nMONOTONIC_USEC=\d+`)
	m.Await(t, `READY=1\nSTATUS=serving, 1 rules, store up`)
	put("domain: [\n")
	await.True(t, "the refusal", func() bool { return strings.Contains(d.log.text(), "shop.yaml") })
	d.Signal(syscall.SIGHUP)
	m.Await(t, `RELOADING=1\nMONOTONIC_USEC=\d+`)
	m.Await(t, `(?s)READY=1\nSTATUS=serving, rules not reloaded: .*shop.yaml.*`)

	d.Signal(syscall.SIGSTOP)
	m.Drain()
	if got := m.Next(3 * time.Second); got != "" {
		t.Errorf("%q of a stopped process", got)
	}
	d.Signal(syscall.SIGCONT)
	d.Signal(syscall.SIGTERM)
	d.Signal(syscall.SIGTERM)
	m.Await(t, `STOPPING=1\nSTATUS=stopping`)
}
