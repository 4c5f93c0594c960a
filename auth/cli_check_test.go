package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// auth check tells each warning once, also when the settings have a mistake, and where its report is.
func TestCheck_warnings(t *testing.T) {
	status, stdout, stderr := command(t, environment("postgres://h/d", "AUTH_SITE_ULR=x", "AUTH_DB_DRIVER=mysql"), "", "check")
	if n := strings.Count(stdout+stderr, "AUTH_SITE_ULR"); status != exitFailed || n != 1 || !strings.Contains(stdout, "warn  AUTH_SITE_ULR") {
		t.Errorf("status %d, %d times\n%s\n%s", status, n, stdout, stderr)
	}
}

// A database user who may only read and write rows serves what another one has migrated; check says what the
// next migrations would need.
func TestCheck_rowsOnly(t *testing.T) {
	t.Parallel()
	pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	owner := pg.PostgresURL("postgres")
	if status, out, errs := command(t, environment(owner), "", "migrate"); status != 0 {
		t.Fatal(out, errs)
	}
	conn, err := pgx.Connect(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "create role rows login; grant select, insert, update, delete on all tables in schema public to rows"); err != nil {
		t.Fatal(err)
	}
	env := environment(strings.Replace(owner, "postgres@", "rows@", 1))
	d := start(t, env)
	d.signUp(t, "ann@example.org")
	status, stdout, stderr := command(t, env, "", "check")
	if status != 0 || !strings.Contains(stdout, "warn  the next version's migrations would need: CREATE on schema public; ownership of table ") || !strings.Contains(stdout, "ok    database rights\n") {
		t.Errorf("status %d\n%s\n%s", status, stdout, stderr)
	}
}

// It finds out whether the providers can be asked what has to be asked of them.
func TestCheck_providers(t *testing.T) {
	t.Parallel()
	idp, err := fakeidp.Start(fakeidp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer idp.Close()
	free := func(name, issuer string) []string {
		p := "AUTH_EXTERNAL_OIDC_" + name + "_"
		return []string{p + "ISSUER=" + issuer, p + "CLIENT_ID=" + fakeidp.ClientID, p + "SECRET=" + fakeidp.ClientSecret, p + "REDIRECT_URI=http://localhost:9999/callback"}
	}
	env := append(environment(testdb.Postgres(t), providersAt(idp, "http://localhost:9999/callback")...), free("GOOD", idp.Base("oidc"))...)
	env = append(env, free("AWAY", idp.URL+"/nobody")...)
	env = append(env, "AUTH_EXTERNAL_FIGMA_ID_TOKEN_ONLY=true", "AUTH_EXTERNAL_FIGMA_SECRET=")
	status, stdout, _ := command(t, env, "", "check")
	for _, want := range []string{"ok    provider google\n", "ok    provider twitter\n", "ok    provider workos\n", "ok    provider good\n", "FAIL  provider away: "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if status != exitFailed || strings.Contains(stdout, "figma") || strings.Contains(stdout, "FAIL  provider good") || strings.Contains(stdout, fakeidp.ClientSecret) {
		t.Errorf("status %d\n%s", status, stdout)
	}
}
