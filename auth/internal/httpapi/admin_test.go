package httpapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
)

func TestAdmin_users(t *testing.T) {
	a := open(t)
	admin := a.service()
	for i := range 5 {
		a.do("POST /admin/users", map[string]any{"email": fmt.Sprintf("u%d@example.org", i),
			"user_metadata": map[string]any{"full_name": fmt.Sprintf("Name %d_%%", i)}}, admin).is(200, "*")
		a.pass(time.Second)
	}
	type list struct {
		Users      []userJSON
		Aud        string
		Pagination *struct {
			NextCursor string `json:"next_cursor"`
			HasMore    bool   `json:"has_more"`
		}
	}
	f := func(query, want, link, total string) (l list) {
		t.Helper()
		got := a.do("GET /admin/users"+query, nil, admin).json(&l)
		var names []string
		for _, u := range l.Users {
			names = append(names, strings.TrimSuffix(u.Email, "@example.org"))
		}
		if have := strings.Join(names, " "); have != want || l.Aud != "authenticated" &&
			!strings.Contains(query, "aud") {
			t.Errorf("%s: %q of %q, want %q", query, have, l.Aud, want)
		}
		if have := got.Header.Get("Link"); have != link {
			t.Errorf("%s: Link\n%s, want\n%s", query, have, link)
		}
		if have := got.Header.Get("X-Total-Count"); have != total {
			t.Errorf("%s: X-Total-Count %q, want %q", query, have, total)
		}
		return l
	}
	f("?page=&per_page=", "u4 u3 u2 u1 u0", `</admin/users?page=1&per_page=>; rel="last"`, "5")
	f("", "u4 u3 u2 u1 u0", `</admin/users?page=1>; rel="last"`, "5")
	f("?page=2&per_page=2", "u2 u1",
		`</admin/users?page=3&per_page=2>; rel="next", </admin/users?page=3&per_page=2>; rel="last"`, "5")
	f("?per_page=2&page=3", "u0", `</admin/users?page=3&per_page=2>; rel="last"`, "5")
	f("?page=9&per_page=2", "", `</admin/users?page=3&per_page=2>; rel="last"`, "5")
	f("?sort=created_at+asc&per_page=2&filter=a,b%3Bc", "",
		`</admin/users?page=0&filter=a%2Cb%3Bc&per_page=2&sort=created_at+asc>; rel="last"`, "0")
	f("?sort=created_at+asc", "u0 u1 u2 u3 u4", `</admin/users?page=1&sort=created_at+asc>; rel="last"`, "5")
	f("?sort=created_at+ASC", "u0 u1 u2 u3 u4", `</admin/users?page=1&sort=created_at+ASC>; rel="last"`, "5")
	f("?sort=created_at&sort=created_at+asc&per_page=1", "u4",
		`</admin/users?page=2&per_page=1&sort=created_at&sort=created_at+asc>; rel="next", </admin/users?page=5&per_page=1&sort=created_at&sort=created_at+asc>; rel="last"`, "5")
	f("?filter=NAME+3", "u3", `</admin/users?page=1&filter=NAME+3>; rel="last"`, "1")
	f("?filter=_%25", "u4 u3 u2 u1 u0", `</admin/users?page=1&filter=_%25>; rel="last"`, "5")
	f("?filter=%00u1@", "u1", `</admin/users?page=1&filter=%00u1%40>; rel="last"`, "1")
	l := f("?email=U2@example.org", "u2", `</admin/users?page=1&email=U2%40example.org>; rel="last"`, "1")
	f("?id="+l.Users[0].ID, "u2", `</admin/users?page=1&id=`+l.Users[0].ID+`>; rel="last"`, "1")
	f("?phone=%2B4915112345678", "", `</admin/users?page=0&phone=%2B4915112345678>; rel="last"`, "0")

	// Behind a cursor.
	l = f("?limit=2", "u4 u3", "", "")
	l = f("?limit=2&cursor="+l.Pagination.NextCursor, "u2 u1", "", "")
	l = f("?limit=2&cursor="+l.Pagination.NextCursor, "u0", "", "")
	if l.Pagination.HasMore || l.Pagination.NextCursor != "" {
		t.Errorf("%+v", l.Pagination)
	}
	l = f("?limit=4&sort=created_at+asc", "u0 u1 u2 u3", "", "")
	f("?sort=created_at+asc&cursor="+l.Pagination.NextCursor, "u4", "", "")

	r := func(query, msg string) {
		t.Helper()
		a.do("GET /admin/users"+query, nil, admin).refused(400, "validation_failed", msg)
	}
	r("?page=x", "Bad Pagination Parameters: *")
	r("?page=0", "Bad Pagination Parameters: *")
	r("?page=-1", "Bad Pagination Parameters: *")
	r("?per_page=0", "Bad Pagination Parameters: *")
	r("?page=x&sort=email", "Bad Pagination Parameters: *")
	r("?limit=x&sort=email", "Bad Pagination Parameters: *")
	r("?limit=0", "Bad Pagination Parameters: *")
	r("?cursor=x", "Bad Pagination Parameters: *")
	r("?cursor="+strings.Repeat("f", 32), "Bad Pagination Parameters: *") // in the year 290,000
	r("?sort=email", "Bad Sort Parameters: bad field for sort 'email'")
	r("?sort=created_at+up", "Bad Sort Parameters: bad direction for sort 'up', only 'asc' and 'desc' allowed")
	r("?id=x", "id must be an UUID")
	for _, most := range []string{"2147483647", "3000000000", "99999999999999999999"} {
		a.do("GET /admin/users?page="+most+"&per_page="+most, nil, admin).is(200, `{"users":[],"aud":"authenticated"}`)
		f("?per_page="+most, "u4 u3 u2 u1 u0", `</admin/users?page=1&per_page=`+most+`>; rel="last"`, "5")
	}
	a.do("GET /admin/users", nil, admin, header{"X-JWT-AUD", "other\x80"}).is(200, `{"users":[],"aud":"other*"}`)
}

func TestAdmin_user(t *testing.T) {
	a := open(t)
	admin := a.service()
	type m = map[string]any
	create := func(in m) answer { t.Helper(); return a.do("POST /admin/users", in, admin) }
	var u userJSON
	create(m{"email": "Mia@example.org", "phone": "+49 151 12345678", "password": sesame, "email_confirm": true,
		"phone_confirm": true,
		"user_metadata": m{"a": 1}, "app_metadata": m{"plan": "x"}, "role": "editor", "ban_duration": "none"}).json(&u)
	if u.Email != "mia@example.org" || u.Phone != "4915112345678" || u.Role != "editor" ||
		u.AppMetadata["plan"] != "x" ||
		u.AppMetadata["provider"] != "email" || u.ConfirmedAt == "" || len(u.Identities) != 2 {
		t.Errorf("user %+v", u)
	}
	id := uuid.NewString()
	create(m{"email": "id@example.org", "id": id}).is(200, `{"id":"`+id+`",*`)
	other := uuid.NewString()
	a.do("POST /admin/users/"+other, m{"email": "path@example.org"}, admin).is(200, `{"id":"`+other+`",*`)
	create(m{"email": "hash@example.org",
		"password_hash": "$2y$10$SXEz2HeT8PUIGQXo9yeUIem8KzNxgG0d7o/.eGj2rj8KbRgAuRVlq",
		"email_confirm": true}).is(200, "*")

	r := func(status int, code, msg string, in m) {
		t.Helper()
		create(in).refused(status, code, msg)
	}
	r(400, "validation_failed", "Cannot create a user without either an email or phone", m{})
	r(400, "validation_failed", "*invalid format", m{"email": "x"})
	r(422, "email_exists", "A user with this email address has already been registered", m{"email": "mia@example.org"})
	r(400, "validation_failed", "Invalid phone number format (E.164 required)", m{"phone": "x"})
	r(422, "phone_exists", "Phone number already registered by another user", m{"phone": "4915112345678"})
	r(400, "validation_failed", "Only a password or a password hash should be provided",
		m{"email": "a@b", "password": sesame, "password_hash": "x"})
	r(400, "validation_failed", "*", m{"email": "a@b", "password_hash": "x"})
	r(400, "validation_failed", "Password cannot be longer than 72 characters",
		m{"email": "a@b", "password": strings.Repeat("x", 73)})
	r(422, "weak_password", "*", m{"email": "a@b", "password": "x"})
	r(400, "validation_failed", "ID must conform to the uuid v4 format", m{"email": "a@b", "id": "x"})
	r(400, "validation_failed", "ID cannot be a nil uuid", m{"email": "a@b", "id": uuid.Nil.String()})
	r(422, "validation_failed", "*", m{"email": "a@b", "id": id})
	r(400, "validation_failed", "invalid format for ban duration*", m{"email": "a@b", "ban_duration": "long"})
	a.do("POST /admin/users/x", m{"email": "a@b"}, admin).refused(404, "validation_failed", "user_id must be an UUID")

	a.do("GET /admin/users/x", nil, admin).refused(404, "validation_failed", "user_id must be an UUID")
	a.do("GET /admin/users/"+strings.ReplaceAll(u.ID, "-", ""), nil, admin).refused(404, "validation_failed",
		"user_id must be an UUID")
	a.do("GET /admin/users/"+uuid.NewString(), nil, admin).refused(404, "user_not_found", "User not found")
	a.do("GET /admin/users/"+strings.ToUpper(u.ID), nil, admin).is(200, `{"id":"`+u.ID+`",*`)

	u0 := u.ID
	put := func(id string, in any) answer { t.Helper(); return a.do("PUT /admin/users/"+id, in, admin) }
	u = userJSON{}
	put(u0, m{"email": "new@example.org", "user_metadata": m{"a": nil, "b": 2}, "ban_duration": "1h",
		"role": "reader"}).json(&u)
	if u.Email != "new@example.org" || u.UserMetadata["a"] != nil || u.UserMetadata["b"] != 2.0 ||
		u.BannedUntil == "" || u.Role != "reader" {
		t.Errorf("user %+v", u)
	}
	put(u.ID, m{"email": "id@example.org"}).refused(422, "email_exists", "*")
	put(id, m{"phone": "4915112345678"}).refused(422, "phone_exists", "*")
	put(u.ID, m{"email": "x"}).refused(400, "validation_failed", "*")
	put(u.ID, m{"phone": "x"}).refused(400, "validation_failed", "*")
	put(u.ID, m{"password": "x"}).refused(422, "weak_password", "*")
	put(u.ID, m{"password": strings.Repeat("x", 73)}).refused(400, "validation_failed", "*")
	put(u.ID, m{"ban_duration": "-1h"}).refused(400, "validation_failed", "invalid format for ban duration*")
	for _, in := range []any{m{}, "{", m{"email": "x"}, m{"password": "x"}} { // whatever is wrong with the body
		put(uuid.NewString(), in).refused(404, "user_not_found", "User not found")
	}
	put("x", m{}).refused(404, "validation_failed", "user_id must be an UUID")
	put(u.ID, "").refused(400, "bad_json", "*")

	del := func(id string, in any) answer { t.Helper(); return a.do("DELETE /admin/users/"+id, in, admin) }
	del(u.ID, "{").refused(400, "bad_json", "*")
	del("x", nil).refused(404, "validation_failed", "*")
	del(uuid.NewString(), nil).refused(404, "user_not_found", "*")
	del(uuid.NewString(), "{").refused(404, "user_not_found", "*")
	del(u.ID, m{"should_soft_delete": true}).is(200, "{}")
	a.do("GET /admin/users/"+u.ID, nil, admin).is(200, `*"deleted_at":"*`)
	del(u.ID, m{"should_soft_delete": true}).is(200, "{}")
	del(u.ID, m{"should_soft_delete": false}).is(200, "{}")
	a.do("GET /admin/users/"+u.ID, nil, admin).refused(404, "user_not_found", "*")
}

func TestAdmin_links(t *testing.T) {
	a := open(t)
	admin := a.service()
	type m = map[string]any
	var u userJSON
	a.do("POST /invite", m{"email": "guest@example.org", "data": m{"team": "blue"}}, admin).json(&u)
	if u.InvitedAt == "" || u.UserMetadata["team"] != "blue" {
		t.Errorf("user %+v", u)
	}
	if l := a.newest("guest@example.org"); !strings.Contains(l.Link, "&type=invite&") {
		t.Errorf("link %s", l.Link)
	}
	var g grantJSON
	a.do("POST /verify", m{"type": "invite", "token_hash": a.newest("guest@example.org").Hash,
		"password": "x"}).refused(422, "weak_password", "*")
	a.do("POST /verify", m{"type": "invite", "token_hash": a.newest("guest@example.org").Hash,
		"password": sesame}).json(&g)
	a.do("POST /token?grant_type=password", m{"email": "guest@example.org", "password": sesame}).is(200, "*")
	a.do("POST /invite", m{"email": "guest@example.org"}, admin).refused(422, "email_exists", "*")
	a.do("POST /invite", m{"email": "x"}, admin).refused(400, "validation_failed", "*")

	type link struct {
		userJSON
		ActionLink       string `json:"action_link"`
		EmailOTP         string `json:"email_otp"`
		HashedToken      string `json:"hashed_token"`
		VerificationType string `json:"verification_type"`
		RedirectTo       string `json:"redirect_to"`
	}
	make := func(query string, in m) (l link) {
		t.Helper()
		a.do("POST /admin/generate_link"+query, in, admin).json(&l)
		if !strings.Contains(l.ActionLink, "/verify?token="+l.HashedToken+"&type=") || len(l.EmailOTP) != 6 {
			t.Errorf("link %+v", l)
		}
		return l
	}
	l := make("", m{"type": "recovery", "email": "guest@example.org", "redirectTo": "useless"})
	if l.VerificationType != "recovery" || l.RedirectTo != siteURL || l.Email != "guest@example.org" {
		t.Errorf("link %+v", l)
	}
	a.do("POST /verify", m{"type": "recovery", "email": "guest@example.org", "token": l.EmailOTP}).is(200, "*")
	l = make("?redirect_to=myapp%3A%2F%2Fcallback",
		m{"type": "magiclink", "email": "guest@example.org", "redirect_to": "https://other.example.org/x"})
	if l.RedirectTo != "https://other.example.org/x" ||
		!strings.HasSuffix(l.ActionLink, "&redirect_to=https://other.example.org/x") {
		t.Errorf("link %+v", l)
	}
	l = make("?redirect_to=myapp%3A%2F%2Fcallback",
		m{"type": "magiclink", "email": "guest@example.org", "redirect_to": "https://evil.example/x"})
	if l.RedirectTo != "myapp://callback" {
		t.Errorf("link %+v", l)
	}
	if l = make("", m{"type": "magiclink", "email": "unknown@example.org"}); l.VerificationType != "signup" {
		t.Errorf("link %+v", l)
	}
	a.do("POST /verify", m{"type": "signup", "token_hash": l.HashedToken}).json(&g)
	make("", m{"type": "signup", "email": "fresh@example.org", "password": sesame})
	make("", m{"type": "invite", "email": "fresh2@example.org"})
	l = make("", m{"type": "email_change_new", "email": "guest@example.org", "new_email": "moved@example.org"})
	if !strings.Contains(l.ActionLink, "&type=email_change&") {
		t.Errorf("link %+v", l)
	}
	r := func(status int, code, msg string, in m) {
		t.Helper()
		a.do("POST /admin/generate_link", in, admin).refused(status, code, msg)
	}
	r(400, "validation_failed", "*", m{"type": "recovery"})
	r(404, "user_not_found", "User with this email not found", m{"type": "recovery", "email": "no@example.org"})
	r(400, "validation_failed", "Signup requires a valid password", m{"type": "signup", "email": "no@example.org"})
	r(400, "validation_failed", "Invalid email action link type requested: x",
		m{"type": "x", "email": "guest@example.org"})
	r(422, "email_exists", "*", m{"type": "invite", "email": "guest@example.org"})
	a.apply(func(s *flow.Settings, _ *Settings) { s.Email.SecureChange = false })
	r(400, "validation_failed", "Enable secure email change to generate link for current email",
		m{"type": "email_change_current", "email": "guest@example.org", "new_email": "b@example.org"})
}

func TestAdmin_audit(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	a.do("PUT /user", map[string]any{"data": map[string]any{"full_name": "Mia M."}}, bearer(g.AccessToken)).is(200, "*")
	a.do("POST /admin/users", map[string]any{"email": "tom@example.org"}, a.service()).is(200, "*")
	type entry struct {
		ID      string
		Payload struct {
			ActorID       string `json:"actor_id"`
			ActorUsername string `json:"actor_username"`
			ActorName     string `json:"actor_name"`
			Action        string
			LogType       string `json:"log_type"`
			Traits        map[string]any
		}
		IP string `json:"ip_address"`
	}
	var list []entry
	got := a.do("GET /admin/audit?per_page=2", nil, a.service()).json(&list)
	if len(list) != 2 || list[0].Payload.Action != "user_signedup" || list[0].Payload.ActorUsername != "service_role" ||
		list[0].Payload.ActorID != uuid.Nil.String() ||
		list[1].Payload.Action != "user_modified" || list[1].Payload.ActorUsername != "mia@example.org" ||
		list[1].Payload.ActorName != "Mia M." || list[1].IP != "127.0.0.1" {
		t.Errorf("entries %+v", list)
	}
	if !like(got.Header.Get("Link"),
		`</admin/audit?page=2&per_page=2>; rel="next", </admin/audit?page=*&per_page=2>; rel="last"`) {
		t.Errorf("Link %s", got.Header.Get("Link"))
	}
	f := func(query, want string) {
		t.Helper()
		var list []entry
		a.do("GET /admin/audit?query="+query, nil, a.service()).json(&list)
		var actions []string
		for _, e := range list {
			actions = append(actions, e.Payload.Action)
		}
		if got := strings.Join(actions, " "); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	f("action:MODIFIED", "user_modified")
	f("author:service", "user_signedup")
	f("type:team", "user_signedup user_signedup")
	f("author:mia%25", "")
	a.do("GET /admin/audit?query=x:y", nil, a.service()).refused(400, "validation_failed", "Invalid query scope: x")
	a.do("GET /admin/audit?query=x", nil, a.service()).refused(400, "validation_failed", "Invalid query scope: x")
	a.do("GET /admin/audit?page=0", nil, a.service()).refused(400, "validation_failed", "Bad Pagination Parameters: *")
}

// Whose role it is decides, not whose token.
func TestAdmin_roles(t *testing.T) {
	a := open(t)
	f := func(token, want string) {
		t.Helper()
		got := a.do("GET /admin/users?per_page=1", nil, bearer(token))
		if have := strings.TrimSpace(fmt.Sprint(got.StatusCode, " ", got.Header.Get("X-Sb-Error-Code"))); have != want {
			t.Errorf("%s, want %s: %s", have, want, got.body)
		}
	}
	f(a.serviceToken("service_role", time.Hour), "200")
	f(a.serviceToken("supabase_admin", time.Hour), "200")
	f(a.serviceToken("admin", time.Hour), "403 not_admin")
	f(a.serviceToken("", time.Hour), "403 not_admin")
	f(a.serviceToken("service_role", -time.Minute), "403 bad_jwt")
	g := a.member("boss@example.org")
	a.do("PUT /admin/users/"+g.User.ID, map[string]any{"role": "service_role"}, a.service()).is(200, "*")
	f(g.AccessToken, "403 not_admin") // the token is of before
	a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": g.RefreshToken}).json(&g)
	f(g.AccessToken, "200")
	a.do("PUT /admin/users/"+g.User.ID, map[string]any{"ban_duration": "1h"}, a.service()).is(200, "*")
	f(g.AccessToken, "403 user_banned")
	a.do("POST /logout?scope=local", nil, bearer(g.AccessToken)).is(204, "")
	f(g.AccessToken, "403 session_not_found")
	a.apply(func(s *flow.Settings, _ *Settings) { s.AdminRoles = nil })
	f(a.serviceToken("service_role", time.Hour), "403 not_admin")
}

// A refusal on a route of administrators is in the audit log, once a minute for a user or a role; garbage is not.
func TestAdmin_refusalsAudited(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	anon := a.serviceToken("anon", time.Hour)
	for range 3 {
		for _, token := range []string{g.AccessToken, anon} {
			a.do("GET /admin/users", nil, bearer(token)).refused(403, "not_admin", "*")
		}
		a.do("GET /admin/users", nil, bearer("x"+g.AccessToken)).refused(403, "bad_jwt", "*")
	}
	rows, _, err := a.db.AuditLog(t.Context(), store.AuditFilter{Action: "admin_refused", Limit: 10})
	if err != nil || len(rows) != 2 || rows[0].ActorRole != "anon" || rows[1].Actor.String() != g.User.ID ||
		string(rows[1].Traits) != `{"reason": "not_admin"}` {
		t.Errorf("%+v, %v", rows, err)
	}
	a.pass(time.Minute)
	a.do("PUT /admin/users/"+g.User.ID, map[string]any{}, bearer(g.AccessToken)).refused(403, "not_admin", "*")
	if rows, _, err = a.db.AuditLog(t.Context(), store.AuditFilter{Action: "admin_refused", Limit: 10}); len(rows) != 3 {
		t.Errorf("a minute later: %+v, %v", rows, err)
	}
}
