package test

import (
	"strings"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/testdb"
)

// These tables of statements were derived by reading the source of supabase/auth, not recorded from a running one:
// internal/models/user.go at 7005247c, identity.go at cc874532, factor.go at 0550f56d, refresh_token.go at 96a3dda4, and
// internal/api/admin.go and external.go at b1cd2b03, identity.go and signup.go at b08654a9, verify.go at 29fa7786,
// mail.go at 007a0a22, user.go at 009e6fe6, token.go at f6f9b653, mfa.go at 29745e36. An UPDATE of its pop models sets
// the columns that the code names, changed or not, and updated_at.

// What the replaced service does to its tables when a user signs up, by its source.
const (
	claims   = "insert aud email raw_app_meta_data:email raw_user_meta_data|update role"
	numbered = "insert aud phone raw_app_meta_data:phone raw_user_meta_data|update role"
	signUp   = "|update raw_user_meta_data|update =raw_app_meta_data"
	sent     = "|update confirmation_sent_at"
	verified = "update email_confirmed_at|update raw_user_meta_data"
	signedIn = "|update =raw_app_meta_data|update last_sign_in_at"
	identity = "insert identity_data last_sign_in_at provider provider_id"
	byAdmin  = "insert identity_data -last_sign_in_at provider provider_id"
	hashes   = "update confirmation_sent_at =email_change_sent_at =phone_change_sent_at =reauthentication_sent_at " +
		"=recovery_sent_at"
)

func (w *ways) post(path, bearer, body string) func() {
	return func() { w.d.want(w.t, 200, "POST", path, bearer, body) }
}

func (w *ways) put(body string) func() {
	return func() { w.d.want(w.t, 200, "PUT", "/user", w.access, body) }
}

func (w *ways) admin(method, body string) func() {
	return func() { w.d.want(w.t, 200, method, "/admin/users/"+w.user, w.service, body) }
}

func (w *ways) prove(kind, to string) func() {
	return func() {
		_, code := w.d.mail(w.t, to)
		w.post("/verify", "", `{"type":"`+kind+`","email":"`+to+`","token":"`+code+`"}`)()
	}
}

func (w *ways) proveSMS(kind, to string) func() {
	return w.post("/verify", "", `{"type":"`+kind+`","phone":"`+to+`","token":"424242"}`)
}

func (w *ways) generate(kind, to, more string) func() {
	return func() {
		a := w.d.want(w.t, 200, "POST", "/admin/generate_link", w.service,
			`{"type":"`+kind+`","email":"`+to+`",`+mia+more+`}`)
		w.link, w.linkKind = a.str("hashed_token"), a.str("verification_type")
	}
}

func (w *ways) follow() {
	w.post("/verify", "", `{"type":"`+w.linkKind+`","token_hash":"`+w.link+`"}`)()
}

func (w *ways) signIn() {
	a := w.d.want(w.t, 200, "POST", "/token?grant_type=password", "", credentials("way1@example.org", horse))
	w.access, w.refresh = a.str("access_token"), a.str("refresh_token")
}

func atGoogle(email string) fakeidp.User {
	return fakeidp.User{ID: email, Login: "mia", Name: "Mia", GivenName: "Mia", Email: email, Verified: true}
}

func (w *ways) comes(email string) func() {
	return func() { w.d.comes(w.t, w.idp, "", "google", atGoogle(email)) }
}

// anonymous signs up a user without an address, by which the user could be found.
func (w *ways) anonymous() {
	a := w.d.want(w.t, 200, "POST", "/signup", "", `{`+mia+`}`)
	w.access = a.str("access_token")
	w.user, _ = a.body["user"].(map[string]any)["id"].(string)
}

const mia = `"data":{"name":"Mia"}`

// mailed, invited, external and numberProven are what several ways have in common.
var (
	mailed  = seen{users: verified + signedIn, identities: "update identity_data"}
	invited = seen{users: strings.ReplaceAll(hashes, " conf", " -conf") + "|" + verified + signedIn,
		identities: "update identity_data"}
	numberProven = seen{users: "update phone_confirmed_at|update +raw_user_meta_data" + signedIn,
		identities: "update +identity_data"}
	external = seen{users: strings.Replace(claims, ":email", ":google", 1) +
		"|update =raw_user_meta_data|update =raw_app_meta_data|update email_confirmed_at" +
		"|update =raw_user_meta_data|update last_sign_in_at", identities: identity}
)

// signUps are the ways to make a user. autoconfirmed signs up at a daemon that confirms at once.
func (w *ways) signUps(autoconfirmed func(body string) func()) []way {
	return []way{
		{"password", "way1@example.org", []step{
			{w.post("/signup", "", `{"email":"way1@example.org","password":"`+horse+`",`+mia+`}`),
				seen{users: claims + signUp + sent, identities: identity}},
			{w.prove("signup", "way1@example.org"), mailed}}},
		{"password, autoconfirm", "way2@example.org", []step{{autoconfirmed(`{"email":"way2@example.org","password":"` + horse + `",` + mia + `}`),
			seen{users: claims + signUp + "|" + verified + "|update last_sign_in_at", identities: identity}}}},
		{"code by mail", "way3@example.org", []step{
			{w.post("/otp", "", `{"email":"way3@example.org","create_user":true,`+mia+`}`),
				seen{users: claims + signUp + sent, identities: identity}},
			{w.prove("email", "way3@example.org"), mailed}}},
		{"magic link", "way4@example.org", []step{
			{w.post("/magiclink", "", `{"email":"way4@example.org",`+mia+`}`),
				seen{users: claims + signUp + sent, identities: identity}},
			{w.prove("email", "way4@example.org"), mailed}}},
		{"code by SMS", "4915100000001", []step{
			{w.post("/otp", "", `{"phone":"4915100000001","create_user":true,`+mia+`}`),
				seen{users: numbered + signUp + sent, identities: identity}},
			{w.proveSMS("sms", "4915100000001"), numberProven}}},
		{"phone and password", "4915100000002", []step{
			{w.post("/signup", "", `{"phone":"4915100000002","password":"`+horse+`",`+mia+`}`),
				seen{users: numbered + signUp + sent, identities: identity}},
			{w.proveSMS("sms", "4915100000002"), numberProven}}},
		{"provider", "way5@example.org", []step{{w.comes("way5@example.org"), external}}},
		{"ID token", "way6@example.org", []step{{func() {
			if a := w.d.native(w.t, "google", w.idp.IDToken("google", atGoogle("way6@example.org"), nil)); a.status != 200 {
				w.t.Errorf("ID token: %d %s", a.status, a.text)
			}
		}, external}}},
		{"invitation", "way7@example.org", []step{
			{w.post("/invite", w.service, `{"email":"way7@example.org",`+mia+`}`),
				seen{users: claims + "|update confirmation_sent_at invited_at", identities: identity}},
			{w.prove("invite", "way7@example.org"), invited}}},
		{"administrator, confirmed", "way8@example.org", []step{
			{w.post("/admin/users", w.service, `{"email":"way8@example.org","email_confirm":true,"user_metadata":{"name":"Mia"}}`),
				seen{users: claims + "|" + verified, identities: byAdmin}}}},
		{"administrator, not confirmed", "way9@example.org", []step{
			{w.post("/admin/users", w.service, `{"email":"way9@example.org","user_metadata":{"name":"Mia"}}`),
				seen{users: claims, identities: byAdmin}}}},
		{"administrator, phone", "4915100000003", []step{
			{w.post("/admin/users", w.service, `{"phone":"4915100000003","phone_confirm":true,"user_metadata":{"name":"Mia"}}`),
				seen{users: numbered + "|update phone_confirmed_at", identities: byAdmin}}}},
		{"generated sign-up", "way10@example.org", []step{
			{w.generate("signup", "way10@example.org", `,"password":"`+horse+`"`),
				seen{users: claims + sent, identities: identity}},
			{w.follow, mailed}}},
		{"generated invitation", "way11@example.org", []step{
			{w.generate("invite", "way11@example.org", ""),
				seen{users: claims + "|update confirmation_sent_at invited_at", identities: identity}},
			{w.follow, invited}}},
		{"generated magic link", "way12@example.org", []step{
			{w.generate("magiclink", "way12@example.org", ""), seen{users: claims + sent, identities: identity}},
			{w.follow, mailed}}},
		{"anonymous", "way13@example.org", []step{
			{w.anonymous,
				seen{users: "insert aud is_anonymous raw_user_meta_data|update role|update last_sign_in_at"}},
			{w.put(`{"email":"way13@example.org"}`),
				seen{users: "update email_change =email_change_confirm_status email_change_sent_at"}},
			{w.prove("email_change", "way13@example.org"),
				seen{users: "update is_anonymous|update email email_change =email_change_confirm_status|" +
					verified + "|update raw_app_meta_data|update last_sign_in_at", identities: identity + "|update =identity_data"}}}},
	}
}

// changes are the ways to change a user.
func (w *ways) changes() []way {
	return []way{
		{"sign-in and refresh", "way1@example.org", []step{{w.signIn, seen{users: "update last_sign_in_at"}},
			{func() {
				w.d.want(w.t, 200, "POST", "/token?grant_type=refresh_token", "", `{"refresh_token":"`+w.refresh+`"}`)
			}, seen{users: "update =last_sign_in_at"}}}},
		{"metadata", "way1@example.org", []step{{w.put(`{"data":{"color":"red"}}`), seen{users: "update raw_user_meta_data"}}}},
		{"new password", "way1@example.org", []step{{w.put(`{"password":"a new horse"}`), seen{users: hashes}},
			{w.put(`{"password":"` + horse + `"}`), seen{users: strings.ReplaceAll(hashes, " conf", " =conf")}}}},
		{"recovery", "way1@example.org", []step{
			{w.post("/recover", "", `{"email":"way1@example.org"}`), seen{users: "update recovery_sent_at"}},
			{w.prove("recovery", "way1@example.org"), seen{users: signedIn[1:]}}}},
		{"phone number", "way1@example.org", []step{
			{w.put(`{"phone":"4915100000004"}`), seen{users: "update phone_change phone_change_sent_at"}},
			{w.proveSMS("phone_change", "4915100000004"),
				seen{users: "update phone phone_change phone_confirmed_at +raw_user_meta_data|" +
					"update raw_app_meta_data|update last_sign_in_at", identities: identity + "|update =identity_data"}}}},
		{"second factor", "way1@example.org", []step{
			{w.signIn, seen{users: "update last_sign_in_at"}},
			{func() { _, a := w.d.app(w.t, w.access); w.access = a.str("access_token") },
				seen{users: "update =last_sign_in_at",
					factors: "insert factor_type status|update last_challenged_at|update status"}},
			{func() {
				factor := testdb.One[string](w.t, w.d.database, "select id::text from auth.mfa_factors where user_id::text = $1", w.user)
				w.d.want(w.t, 200, "DELETE", "/factors/"+factor, w.access, "")
			}, seen{factors: "delete"}}}},
		{"address", "way1@example.org", []step{
			{w.signIn, seen{users: "update last_sign_in_at"}},
			{w.put(`{"email":"way14@example.org"}`),
				seen{users: "update email_change =email_change_confirm_status email_change_sent_at"}},
			{w.prove("email_change", "way1@example.org"), seen{users: "update email_change_confirm_status"}},
			{w.prove("email_change", "way14@example.org"),
				seen{users: "update email email_change email_change_confirm_status +raw_user_meta_data" + signedIn,
					identities: "update identity_data|update =identity_data"}}}},
		{"provider again", "way5@example.org", []step{{w.comes("way5@example.org"),
			seen{users: "update =raw_user_meta_data" + signedIn, identities: "update =identity_data +last_sign_in_at"}}}},
		{"provider of a known address", "way8@example.org", []step{{w.comes("way8@example.org"),
			seen{users: "update raw_user_meta_data|update raw_app_meta_data|update last_sign_in_at", identities: identity}}}},
		{"administrator's change", "way2@example.org", []step{
			{w.admin("PUT", `{"role":"editor","app_metadata":{"plan":"pro"},"ban_duration":"24h"}`),
				seen{users: "update role|update raw_app_meta_data|update banned_until"}}}},
		{"soft deletion", "way10@example.org", []step{{w.admin("DELETE", `{"should_soft_delete":true}`),
			seen{users: "update deleted_at email -email_change -phone -phone_change +confirmation_sent_at +last_sign_in_at|" +
				"update raw_user_meta_data|update raw_app_meta_data", identities: "update identity_data +last_sign_in_at|update provider_id"}}}},
		{"deletion", "way11@example.org", []step{{w.admin("DELETE", ""), seen{users: "delete", identities: "delete"}}}},
	}
}
