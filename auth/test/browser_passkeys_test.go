package test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// applicationPage makes the client library's client, which the scripts use as auth.
const applicationPage = `<!DOCTYPE html><title>App</title><link rel=icon href=data:,>
<script type="importmap">{"imports":{"tslib":"/modules/tslib/tslib.es6.mjs"}}</script>
<script type="module">
import { GoTrueClient } from '/modules/@supabase/auth-js/dist/module/index.js'
window.auth = new GoTrueClient({ url: %q, autoRefreshToken: false, experimental: { passkey: true } })
</script>`

// application serves a page of an application below localhost, which is a relying party without TLS.
func application(t *testing.T, modules, auth string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, module := strings.CutPrefix(r.URL.Path, "/modules/")
		if !module {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, applicationPage, auth)
			return
		}
		// The library's own imports have no ending.
		if ext := filepath.Ext(name); ext != ".js" && ext != ".mjs" {
			name += ".js"
		}
		text, err := os.ReadFile(filepath.Join(modules, filepath.FromSlash(name)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/javascript")
		w.Write(text)
	}))
	t.Cleanup(s.Close)
	return strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
}

// TestBrowser_passkeys: passkeys and security keys with the client library in Chromium.
func TestBrowser_passkeys(t *testing.T) {
	t.Parallel()
	_, modules := needBrowser(t)
	ports, err := localserver.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	auth := "http://127.0.0.1:" + ports[0]
	app := application(t, modules, auth)
	start(t, environment(testdb.Postgres(t), "PORT="+ports[0], "AUTH_API_EXTERNAL_URL="+auth, "AUTH_SITE_URL="+app,
		"AUTH_MAILER_AUTOCONFIRM=true", "AUTH_PASSKEY_ENABLED=true", "AUTH_PASSKEY_AAL=aal2",
		"AUTH_PASSKEY_USER_VERIFICATION=required", "AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED=true",
		"AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED=true", "AUTH_WEBAUTHN_RP_ID=localhost", "AUTH_WEBAUTHN_RP_DISPLAY_NAME=Shop",
		"AUTH_WEBAUTHN_RP_ORIGINS="+app))
	runBrowser(t, "passkeys.mjs", "AUTH="+auth, "APP="+app, "UNLISTED="+application(t, modules, auth))
}
