package test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse/shared/must"
	"gatehouse/shared/systemdtest"
	"gatehouse/shared/testdb"
)

const unitFile = "../deploy/systemd/gatehouse-auth.service"

// The daemon as its unit starts it: the program alone, secrets as credentials, all else from the settings file. The other
// end of the socket hears of the start, signs of life under a flood of passwords too, a reload, and the stop.
func TestSystemd(t *testing.T) {
	t.Parallel()
	unit, _ := systemdtest.Read(t, unitFile)
	if got := unit["ExecStart"]; !slices.Equal(got, []string{"/usr/bin/gatehouse-auth"}) {
		t.Fatalf("ExecStart %q", got)
	}
	m := systemdtest.NewManager(t)
	env := slices.Concat([]string{asProgram + "=1", "AUTH_API_HOST=127.0.0.1", "PORT=0", "AUTH_PASSWORD_HASH=bcrypt:4",
		"AUTH_SITE_URL=http://localhost:3000", "AUTH_API_EXTERNAL_URL=http://localhost:9999", "AUTH_DB_DRIVER=postgres",
		"AUTH_MAILER_AUTOCONFIRM=true"},
		unit.Environment(t, map[string]string{"DATABASE_URL": testdb.Postgres(t),
			"AUTH_JWT_SECRET": "0123456789abcdef0123456789abcdef", "AUTH_SECRET_KEY": "fedcba9876543210fedcba9876543210"}),
		m.Environment(2*time.Second))
	d := start(t, env)
	m.Await(t, `READY=1\nSTATUS=serving, database up`)
	m.Await(t, "WATCHDOG=1")
	if text := d.log.text(); strings.Contains(text, "NOTIFY_SOCKET") || strings.Contains(text, "WATCHDOG") {
		t.Errorf("the variables of systemd are warned of:\n%s", text)
	}

	ctx, done := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 16 {
		load.Go(func() {
			for ctx.Err() == nil {
				call("POST", d.http+"/signup", "", credentials("ann@example.org", horse)) // hashes, whatever it answers
			}
		})
	}
	m.Drain()
	m.Await(t, "WATCHDOG=1")
	m.Await(t, "WATCHDOG=1")
	done()
	load.Wait()

	d.Signal(syscall.SIGHUP)
	m.Await(t, `RELOADING=1\nMONOTONIC_USEC=\d+`)
	m.Await(t, `READY=1\nSTATUS=serving, database up`)

	d.Signal(syscall.SIGSTOP) // a process that hangs gives no sign of life
	m.Drain()
	if got := m.Next(3 * time.Second); got != "" {
		t.Errorf("%q of a stopped process", got)
	}
	d.Signal(syscall.SIGCONT)
	m.Await(t, "WATCHDOG=1")

	if err := d.Stop(20 * time.Second); err != nil { // one SIGTERM: a second would end the drain
		t.Error(err)
	}
	m.Await(t, `STOPPING=1\nSTATUS=stopping`)
}

// A start that waits for the database has the manager wait; a reload that is refused says why.
func TestSystemd_waits(t *testing.T) {
	t.Parallel()
	m := systemdtest.NewManager(t)
	real := testdb.Postgres(t)
	socket, dir := postgresSocket(t, real), shortFolder(t)
	away := strings.ReplaceAll(real, url.QueryEscape(filepath.Dir(socket)), url.QueryEscape(dir))
	if away == real {
		away = strings.ReplaceAll(real, filepath.Dir(socket), dir)
	}
	d := launch(t, t.TempDir(), append(environment(away), m.Environment(0)...), "serve")
	m.Await(t, `EXTEND_TIMEOUT_USEC=30000000\nSTATUS=waiting for the database`)
	must.Succeed(t, os.Symlink(socket, filepath.Join(dir, filepath.Base(socket))))
	d.awaitReady(t)
	m.Await(t, `READY=1\nSTATUS=serving, database up`)
	write(t, d.dir+"/.env", "AUTH_JWT_EXP=never\n")
	d.Signal(syscall.SIGHUP)
	m.Await(t, `RELOADING=1\nMONOTONIC_USEC=\d+`)
	m.Await(t, `(?s)READY=1\nSTATUS=serving, settings not reloaded: .*AUTH_JWT_EXP.*`)
	d.Signal(syscall.SIGTERM)
	d.Signal(syscall.SIGTERM)
	m.Await(t, `STOPPING=1\nSTATUS=stopping`)
}

// shortFolder is a temporary folder whose path leaves room for a socket's name.
func shortFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	must.Succeed(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
