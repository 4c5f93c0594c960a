package main

import (
	"strings"
	"testing"
)

// auth check tells each warning once, also when the settings have a mistake, and where its report is.
func TestCheck_warnings(t *testing.T) {
	status, stdout, stderr := command(t, environment("postgres://h/d", "AUTH_SITE_ULR=x", "AUTH_DB_DRIVER=mysql"), "", "check")
	if n := strings.Count(stdout+stderr, "AUTH_SITE_ULR"); status != exitFailed || n != 1 || !strings.Contains(stdout, "warn  AUTH_SITE_ULR") {
		t.Errorf("status %d, %d times\n%s\n%s", status, n, stdout, stderr)
	}
}
