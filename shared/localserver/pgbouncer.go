package localserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// PgBouncer starts a PgBouncer in transaction mode in front of a server that Postgres started, on a unix socket: every
// user may log in without a password, and is the superuser at PostgreSQL. Further lines go into the [pgbouncer]
// section. Call PostgresURL on the returned Server instead of on postgres.
func PgBouncer(ctx context.Context, postgres *Server, lines ...string) (*Server, error) {
	credential := postgres.plan.credential
	return start(ctx, plan{
		program: "pgbouncer", socket: socketName, ready: postgresReady,
		credential: credential, files: true,
		// SIGTERM ends at once; SIGINT would wait for clients.
		quit: syscall.SIGTERM,
		prepare: func(dir string, _ int) ([]string, error) {
			conf := filepath.Join(dir, "pgbouncer.ini")
			if err := os.WriteFile(conf, []byte(bouncerConf(dir, postgres.Dir(), lines)), 0o644); err != nil {
				return nil, err
			}
			if credential != nil {
				if err := os.Chown(dir, int(credential.Uid), int(credential.Gid)); err != nil {
					return nil, err
				}
			}
			return []string{"--quiet", conf}, nil
		},
	})
}

func bouncerConf(dir, postgres string, lines []string) string {
	var b strings.Builder
	// The sockets' names contain the port.
	fmt.Fprintf(&b, "[databases]\n* = host=%s port=5432 user=postgres\n[pgbouncer]\n", postgres)
	fmt.Fprintf(&b, "unix_socket_dir = %s\nlisten_port = 5432\nlisten_addr =\n", dir)
	b.WriteString("auth_type = any\npool_mode = transaction\nignore_startup_parameters = extra_float_digits\n")
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	return b.String()
}
