package main

import (
	"strings"
	"testing"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/testdb"
)

// auth check tells each warning once, also when the settings have a mistake, and where its report is.
func TestCheck_warnings(t *testing.T) {
	status, stdout, stderr := command(t, environment("postgres://h/d", "AUTH_SITE_ULR=x", "AUTH_DB_DRIVER=mysql"), "", "check")
	if n := strings.Count(stdout+stderr, "AUTH_SITE_ULR"); status != exitFailed || n != 1 || !strings.Contains(stdout, "warn  AUTH_SITE_ULR") {
		t.Errorf("status %d, %d times\n%s\n%s", status, n, stdout, stderr)
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
