package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestDisabled: what is left out says so, whatever the request holds.
func TestDisabled(t *testing.T) {
	a := open(t)
	const oauth = "404 feature_disabled OAuth server is disabled"
	for request, want := range map[string]string{
		"POST /sso":                          "404 saml_provider_disabled SAML 2.0 is disabled",
		"POST /token?grant_type=web3":        "422 web3_provider_disabled Web3 provider is disabled",
		"GET /passkeys/registration/options": "404 passkey_disabled Passkeys are disabled",
		"GET /passkeys":                      "404 passkey_disabled Passkeys are disabled",
		"PUT /passkeys":                      "404 passkey_disabled Passkeys are disabled",
		"GET /passkeys//x":                   "404 passkey_disabled Passkeys are disabled",
		"GET /admin/users/abc/passkeys": "401 no_authorization This endpoint requires a valid " +
			"Bearer token",
		"POST /passkeys/authentication/verify":  "404 passkey_disabled Passkeys are disabled",
		"POST /passkeys/authentication/options": "404 passkey_disabled Passkeys are disabled",
		"POST /passkeys/registration/options":   "404 passkey_disabled Passkeys are disabled",
		"POST /passkeys/registration/verify":    "404 passkey_disabled Passkeys are disabled",
		"PATCH /passkeys/abc":                   "404 passkey_disabled Passkeys are disabled",
		"DELETE /passkeys/abc":                  "404 passkey_disabled Passkeys are disabled",
		"GET /oauth/authorize?client_id=x":      oauth,
		"POST /oauth/token":                     oauth,
		"GET /oauth/authorizations/abc":         oauth,
		"POST /oauth/clients/register":          oauth,
		"GET /admin/oauth/clients":              oauth,
		"DELETE /admin/oauth/clients/abc":       oauth,
		"GET /user/oauth/grants":                oauth,
		"DELETE /user/oauth/grants?client_id=x": oauth,
		"GET /scim/v2/Users":                    "404 feature_disabled SCIM server is disabled",
		"GET /admin/custom-providers (admin)": "404 feature_disabled Custom OAuth providers are " +
			"disabled",
		"DELETE /admin/custom-providers/custom:a (admin)": "404 feature_disabled Custom OAuth providers are " +
			"disabled",
		"GET /admin/custom-providers": "401 no_authorization This endpoint requires a valid " +
			"Bearer token",
		"PATCH /admin/custom-providers/custom:a?with=no+token": "401 no_authorization This endpoint requires a valid " +
			"Bearer token",
	} {
		path, admin := strings.CutSuffix(request, " (admin)")
		var headers []header
		if admin {
			headers = append(headers, a.service())
		}
		got := a.do(path, "{no JSON", headers...)
		var body struct {
			Code int
			Name string `json:"error_code"`
			Msg  string
		}
		if err := json.Unmarshal([]byte(got.body), &body); err != nil {
			t.Errorf("%s: %v", request, err)
		}
		status, rest, _ := strings.Cut(want, " ")
		code, msg, _ := strings.Cut(rest, " ")
		if got.Status[:3] != status || body.Name != code || body.Msg != msg {
			t.Errorf("%s: %s %s, want %s", request, got.Status, got.body, want)
		}
	}
}
