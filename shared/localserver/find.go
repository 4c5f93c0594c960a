package localserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// packages names the Debian package of each program, for the line to type when it is missing.
var packages = map[string]string{
	"redis-server":   "redis-server",
	"redis-sentinel": "redis-sentinel",
	"memcached":      "memcached",
	"initdb":         "postgresql",
	"postgres":       "postgresql",
	"pg_dump":        "postgresql-client",
	"pg_restore":     "postgresql-client",
	"pg_basebackup":  "postgresql-client",
	"pgbouncer":      "pgbouncer",
	"chromium":       "chromium",
}

// Find returns the path of a server program: from PATH, otherwise from the folders where Debian puts servers, which are
// not on every user's PATH. Of several PostgreSQL versions it returns the newest.
func Find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	dirs := []string{"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well-formed
	slices.SortFunc(versions, func(a, b string) int { return version(b) - version(a) })
	for _, dir := range append(dirs, versions...) {
		path := filepath.Join(dir, program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s; apt-get install -y %s", ErrMissing, program, packages[program])
}

// Envoy returns the path of Envoy: ENVOY_BIN, on PATH, or where .ci/envoy puts it below a checkout's root; "" if there
// is none.
func Envoy(root string) string {
	if path := os.Getenv("ENVOY_BIN"); path != "" {
		return path
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path
	}
	found, _ := filepath.Glob(
		filepath.Join(root, ".run/envoy/lib/python*/site-packages/envoy/_bin/envoy")) // the pattern is well-formed
	if len(found) == 0 {
		return ""
	}
	path, _ := filepath.Abs(found[0]) // it is run in other folders
	return path
}

// version returns 15 for /usr/lib/postgresql/15/bin.
func version(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir))) // 0, the least, for a text that is no number
	return n
}
