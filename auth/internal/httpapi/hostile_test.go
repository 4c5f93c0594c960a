package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// What the decoder lets through, the database must take: nothing a client sends is a 500.
func TestHostile_metadata(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	f := func(value string) {
		t.Helper()
		var u, want userJSON
		text := `{"data":{"x":` + value + `}}`
		a.do("PUT /user", text, bearer(g.AccessToken)).json(&u)
		if err := json.Unmarshal([]byte(`{"user_metadata":{"x":`+value+`}}`), &want); err == nil &&
			!reflect.DeepEqual(u.UserMetadata["x"], want.UserMetadata["x"]) {
			t.Errorf("%.100s comes back as %.100v", value, u.UserMetadata["x"])
		}
	}
	f(`"plain"`)
	f(`"\u0001\u001f\u007f\u0080\u2028\ufffe\uffff\ud83d\ude00"`)
	f(`"` + strings.Repeat("ä", 100_000) + `"`)
	f(`{"":{"":[]},"a\"b\\c":1}`)
	f(`{"` + strings.Repeat("k", 10_000) + `":1}`)
	f(strings.Repeat(`[`, 20) + strings.Repeat(`]`, 20))
	f(`[0,-0,1e300,-1.5e-300,123456789012345678,0.1]`)
	f(strings.Repeat("9", 300))
	f(`[true,false,null,[],{},""]`)
	f(`[` + strings.Repeat(`1,`, 20_000) + `1]`)
	a.do("PUT /user", `{"data":{"x":`+strings.Repeat(`[`, 98)+strings.Repeat(`]`, 98)+`}}`,
		bearer(g.AccessToken)).refused(400, "validation_failed", "*nested*")
	for _, n := range []string{"1e999", "1e-999", strings.Repeat("7", 1000), "1e99999999999999999999"} {
		if got := a.do("PUT /user", `{"data":{"n":`+n+`}}`, bearer(g.AccessToken)); got.StatusCode >= 500 {
			t.Errorf("%.30s: %d %s", n, got.StatusCode, got.body)
		}
	}
}

// nasty breaks naive code.
var nasty = []string{"\x01", "\x7f", "\u2028", "\U0001F600", "'; drop table users; --", `{{.Token}}`, "%s%n",
	"../../etc/passwd", strings.Repeat("a", 70_000),
	strings.Repeat("a", 300) + "@example.org", "a@" + strings.Repeat("b.", 1000) + "c", "+49\u00a0151",
	"\u202e@example.org", "a\r\nBcc: b@example.org", "00000000-0000-0000-0000-000000000000", "NaN", "-1h", "9999999h"}

// usual is a body that has those of the fields for which there is a value that breaks nothing.
func usual(fields []string) map[string]any {
	in := map[string]any{"email": "mia@example.org", "password": sesame, "type": "signup", "auth_code": "x",
		"code_verifier": "y"}
	maps.DeleteFunc(in, func(field string, _ any) bool { return !slices.Contains(fields, field) })
	return in
}

// Every text of every body, filled with what breaks naive code. A refusal, and so the log's line, does not grow
// with what it is about.
func TestHostile_texts(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	bodies := map[string][]string{
		"POST /signup": {"email", "phone", "password", "channel", "code_challenge",
			"code_challenge_method"}, "POST /token?grant_type=password": {"email", "phone", "password"},
		"POST /token?grant_type=refresh_token": {"refresh_token"},
		"POST /token?grant_type=pkce":          {"auth_code", "code_verifier"},
		"POST /verify": {"type", "token", "token_hash", "email", "phone", "redirect_to",
			"password"},
		"POST /otp":                 {"email", "phone", "channel"},
		"POST /magiclink":           {"email"},
		"POST /recover":             {"email"},
		"POST /resend":              {"type", "email", "phone"},
		"PUT /user":                 {"email", "phone", "password", "nonce", "current_password", "channel"},
		"POST /invite":              {"email"},
		"POST /admin/generate_link": {"type", "email", "new_email", "password", "redirect_to"},
		"POST /admin/users": {"id", "aud", "email", "phone", "password", "password_hash", "role",
			"ban_duration"}, "PUT /admin/users/" + g.User.ID: {"email", "phone", "password", "role", "ban_duration"},
	}
	for what, fields := range bodies {
		who := bearer(g.AccessToken)
		if strings.Contains(what, "admin") || strings.Contains(what, "invite") {
			who = a.service()
		}
		for _, field := range fields {
			for i, text := range nasty {
				in := usual(fields)
				if field == "phone" || field == "channel" {
					delete(in, "email")
					in["phone"] = fmt.Sprintf("4915112%06d", i)
				}
				in[field] = text
				if got := a.do(what, in, who); got.StatusCode >= 500 || got.StatusCode >= 400 && len(got.body) > 500 {
					t.Errorf("%s with %s %.40q: %d %s", what, field, text, got.StatusCode, got.body)
				}
			}
		}
	}
	long := strings.Repeat("X", 30_000)
	for _, route := range []string{long + " /user", "POST /logout?scope=" + long, "GET /admin/audit?query=" + long,
		"GET /admin/users?sort=" + long, "GET /authorize?provider=" + long} {
		who := bearer(g.AccessToken)
		if strings.Contains(route, "admin") {
			who = a.service()
		}
		if got := a.do(route, nil, who); got.StatusCode < 400 || len(got.body) > 500 {
			t.Errorf("%.30s: %d with %d bytes: %.200s", route, got.StatusCode, len(got.body), got.body)
		}
	}
	if line := a.log.String(); strings.Contains(line, long[:200]) {
		t.Error("the log repeats a long text of a client")
	}
	for i, text := range nasty {
		h := []header{{"User-Agent", strings.Map(printableOnly, text) + "\xff\xfe"},
			{"X-Jwt-Aud", strings.Map(printableOnly, text) + "\xff"}, bearer(g.AccessToken)}
		if got := a.do("POST /token?grant_type=password",
			map[string]any{"email": "mia@example.org", "password": sesame}, h...); got.StatusCode >= 500 {
			t.Errorf("header %d: %d %s", i, got.StatusCode, got.body)
		}
	}
	for _, query := range []string{"filter=%00%ff", "filter=" + strings.Repeat("%25", 1000), "email=%ff", "phone=%00",
		"sort=%ff", "page=1&page=2", "cursor=%00", "id=%ff", ";;=&&%zz"} {
		if got := a.do("GET /admin/users?"+query, nil, a.service()); got.StatusCode >= 500 {
			t.Errorf("%s: %d %s", query, got.StatusCode, got.body)
		}
		if got := a.do("GET /admin/audit?query=author:"+strings.TrimPrefix(query, "filter="), nil,
			a.service()); got.StatusCode >= 500 {
			t.Errorf("audit %s: %d %s", query, got.StatusCode, got.body)
		}
	}
}

func printableOnly(r rune) rune {
	if r < ' ' || r > '~' {
		return -1
	}
	return r
}
