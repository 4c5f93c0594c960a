package test

import (
	"strings"
	"testing"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/shared/testdb"
)

// The plan names every pending file and changes nothing; for a role that may not create, it names the missing right.
func TestMigrate_plan(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	formertest.Exec(t, url, `create schema gatehouse`)
	sep := "?"
	if strings.Contains(url, "?") {
		sep = "&"
	}
	env := environment(url + sep + "search_path=gatehouse")
	status, first, stderr := command(t, env, "", "migrate", "-plan")
	lines := strings.Split(strings.TrimSpace(first), "\n")
	last := lines[len(lines)-1]
	if status != 0 || lines[0] != "00001_users.sql" ||
		!strings.HasSuffix(last, " files; needs: CREATE on schema gatehouse, ownership of table users") {
		t.Fatalf("status %d\n%s%s", status, first, stderr)
	}
	if _, again, _ := command(t, env, "", "migrate", "-plan"); again != first {
		t.Errorf("the second plan differs:\n%s\nfrom\n%s", again, first)
	}
	formertest.Exec(t, url,
		`drop role if exists planner; create role planner; grant usage on schema gatehouse to planner`)
	t.Cleanup(func() { formertest.Exec(t, url, `drop owned by planner; drop role planner`) })
	as := environment(url + sep + "search_path=gatehouse&role=planner")
	if status, _, stderr := command(t, as, "", "migrate", "-plan"); status != 1 ||
		!strings.Contains(stderr, "missing: CREATE on schema gatehouse") {
		t.Errorf("without the right: got status %d and %s", status, stderr)
	}
	if status, stdout, stderr := command(t, env, "", "migrate"); status != 0 {
		t.Fatal(stdout, stderr)
	}
	if status, stdout, _ := command(t, env, "", "migrate", "-plan"); status != 0 || stdout != "nothing to apply\n" {
		t.Errorf("afterwards: got status %d and %q, want nothing to apply", status, stdout)
	}
}
