package localserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// PgBouncer starts a PgBouncer in transaction mode, on a unix socket, in front of a server that Postgres has started.
// Any user may log in without a password, and is the superuser at PostgreSQL. lines are added to the [pgbouncer]
// section of its configuration. Call PostgresURL on the result instead of on postgres.
func PgBouncer(ctx context.Context, postgres *Server, lines ...string) (*Server, error) {
	credential := postgres.plan.credential
	return start(ctx, plan{
		program: "pgbouncer", socket: socketName, ready: postgresReady,
		credential: credential, files: true,
		// SIGTERM ends PgBouncer at once; SIGINT would make it wait for clients.
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
	// The port is not used for TCP: it is only part of the sockets' names.
	fmt.Fprintf(&b, "[databases]\n* = host=%s port=5432 user=postgres\n[pgbouncer]\n", postgres)
	fmt.Fprintf(&b, "unix_socket_dir = %s\nlisten_port = 5432\nlisten_addr =\n", dir)
	b.WriteString("auth_type = any\npool_mode = transaction\nignore_startup_parameters = extra_float_digits\n")
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	return b.String()
}
