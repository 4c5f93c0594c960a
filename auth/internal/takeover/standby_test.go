package takeover_test

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
	"gatehouse/shared/testdb"
)

// standbyOf starts a hot standby, copied with pg_basebackup, and returns its URL.
func standbyOf(t *testing.T, primary *localserver.Server) string {
	t.Helper()
	backup, postgres := testdb.Program(t, "pg_basebackup"), testdb.Program(t, "postgres")
	dir, err := os.MkdirTemp("", "gatehouse-standby-")
	must.Succeed(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	attributes := new(syscall.SysProcAttr)
	if os.Geteuid() == 0 { // PostgreSQL refuses root
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Skip(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		must.Succeed(t, os.Chown(dir, uid, gid))
	}
	data := filepath.Join(dir, "data")
	copying := exec.CommandContext(t.Context(), backup, "-h", primary.Dir(), "-U", "postgres", "-D", data, "-R", "-c",
		"fast", "-X", "stream")
	copying.SysProcAttr, copying.Dir = attributes, dir
	if out, err := copying.CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	server := exec.Command(postgres, "-D", data, "-k", dir, "-c", "listen_addresses=")
	server.SysProcAttr, server.Dir = attributes, dir
	running, err := subprocess.Start(server) // not by itself: it would end with the thread that started it
	must.Succeed(t, err)
	t.Cleanup(func() {
		running.Signal(syscall.SIGINT)
		<-running.Ended()
	})
	url := "postgres://postgres@/postgres?host=" + dir
	await.True(t, "the standby answers", func() bool {
		c, err := pgx.Connect(t.Context(), url)
		if err == nil {
			c.Close(t.Context())
		}
		return err == nil
	})
	return url
}
