package localserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// packages maps each program to the Debian package that has it, for the message about a missing program.
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

// Find returns the path of a server's program. It looks in PATH and then in the folders in which Debian installs
// servers, which not every user has in PATH. If several versions of PostgreSQL are installed, it returns the newest
// one's program.
func Find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	dirs := []string{"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is valid: no error
	slices.SortFunc(versions, func(a, b string) int { return version(b) - version(a) })
	for _, dir := range append(dirs, versions...) {
		path := filepath.Join(dir, program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s; apt-get install -y %s", ErrMissing, program, packages[program])
}

// Envoy returns the path of Envoy: ENVOY_BIN, or Envoy on PATH, or where the script .ci/envoy installs it below root,
// the folder of a checkout. It returns "" if there is none.
func Envoy(root string) string {
	if path := os.Getenv("ENVOY_BIN"); path != "" {
		return path
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path
	}
	found, _ := filepath.Glob(
		filepath.Join(root, ".run/envoy/lib/python*/site-packages/envoy/_bin/envoy")) // the pattern is valid: no error
	if len(found) == 0 {
		return ""
	}
	path, _ := filepath.Abs(found[0]) // made absolute, since Envoy is run in other folders
	return path
}

// version returns the version in the path of a PostgreSQL folder: 15 for /usr/lib/postgresql/15/bin.
func version(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir))) // 0, the oldest version, for a text that is not a number
	return n
}
