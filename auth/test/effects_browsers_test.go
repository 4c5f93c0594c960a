package test

import (
	"strings"
	"testing"
)

// Sign-ins by a browser: which browser may finish one, when, by which interface of the provider, and which users may
// sign in.
func TestEffects_browsers(t *testing.T) {
	t.Parallel()
	idp, d := startIDP(t), startTuned(t)
	with := func(more ...string) {
		t.Helper()
		d.with(t, append(providersAt(idp, backHere), more...)...)
	}
	for setting, want := range map[string]int{"": 300, "AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION=10m": 600,
		"AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION=10s": 300} {
		with(setting)
		_, cookies := d.begin(t, "github")
		if len(cookies) != 1 || cookies[0].MaxAge != want {
			t.Errorf("%s: cookies %v, want one for %d s", setting, cookies, want)
		}
		life := rows[float64](t, d.database,
			`select extract(epoch from expires_at - created_at)::float8 from external_states order by created_at desc limit 1`)
		if len(life) != 1 || life[0] != float64(want) {
			t.Errorf("%s: a state lives %v s, want %d", setting, life, want)
		}
	}

	// The interfaces of before have no flag for the address: their addresses count as proven.
	for provider, way := range map[string]struct{ setting, oidc, legacy string }{
		"linkedin": {"AUTH_EXTERNAL_LINKEDIN_MODE=", "scope=openid+email+profile",
			"scope=r_emailaddress+r_liteprofile"},
		"slack": {"AUTH_EXTERNAL_SLACK_MODE=", idp.Base("slack") + "/openid/connect/authorize?",
			idp.Base("slack") + "/oauth/authorize?"},
	} {
		for mode, want := range map[string]struct{ begin, code string }{
			"":       {way.oidc, "provider_email_needs_verification"},
			"oidc":   {way.oidc, "provider_email_needs_verification"},
			"legacy": {way.legacy, ""},
		} {
			with(way.setting + mode)
			if at, _ := d.begin(t, provider); !strings.Contains(at.String(), want.begin) {
				t.Errorf("%s%s leads to %s, without %s", way.setting, mode, at, want.begin)
			}
			u := d.someone()
			u.Verified = false
			d.comes(t, idp, want.code, provider, u)
		}
	}
}
