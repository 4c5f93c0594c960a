package account_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/shared/must"
)

func members(t *testing.T, text json.RawMessage) (m map[string]any) {
	t.Helper()
	must.Succeed(t, json.Unmarshal(text, &m))
	return m
}

// The members of user_metadata that get into tokens as facts are written by the service alone.
func TestUserMetadata_ownMembers(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	before := members(t, g.User.UserMetadata)
	forged := `{"nick":"mi","sub":"x","email":"tom@example.org","email_verified":false,"phone":"4917600000000","phone_verified":true}`
	removed := `{"sub":null,"email":null,"email_verified":null,"phone":null,"phone_verified":null}`
	want := func(what string, got json.RawMessage, wanted map[string]any) {
		t.Helper()
		if d := cmp.Diff(wanted, members(t, got)); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	nicked := map[string]any{"nick": "mi"}
	for name, value := range before {
		nicked[name] = value
	}
	for _, data := range []string{forged, removed} {
		u, err := h.UpdateUser(t.Context(), browser, h.caller(g), flow.UserUpdate{Data: []byte(data)})
		must.Succeed(t, err)
		want("PUT /user "+data, u.UserMetadata, nicked)
		if u, err = h.AdminUpdate(t.Context(), browser, service, g.User.ID,
			flow.Attributes{UserMetadata: []byte(data)}); err != nil {
			t.Fatal(err)
		}
		want("an administrator "+data, u.UserMetadata, nicked)
	}
	guest, err := h.SignUpAnonymous(t.Context(), browser, []byte(forged))
	must.Succeed(t, err)
	want("anonymous", guest.User.UserMetadata, map[string]any{"nick": "mi"})
	must.Succeed(t, must.ErrOf(h.SignUp(t.Context(), browser,
		flow.SignUp{Phone: "+4917612345678", Password: "sesame", Data: []byte(forged)})))
	v, err := h.Verify(t.Context(), browser,
		flow.Verify{Type: "sms", Phone: "+4917612345678", Token: h.newest("signup", "4917612345678").Code})
	must.Succeed(t, err)
	want("sign-up by phone", v.Grant.User.UserMetadata,
		map[string]any{"nick": "mi", "sub": v.Grant.User.ID.String(), "phone": "4917612345678",
			"phone_verified": true, "email_verified": false})
}

// The limit holds for both objects together; what exceeds it already may only shrink.
func TestMetadata_limit(t *testing.T) {
	t.Parallel()
	h := open(t)
	object := func(n int) []byte { // of n bytes
		return []byte(fmt.Sprintf(`{"a":"%s"}`, strings.Repeat("x", n-len(`{"a":""}`))))
	}
	large := h.confirmed("large@example.org")
	must.Succeed(t, must.ErrOf(h.UpdateUser(
		t.Context(), browser, h.caller(large), flow.UserUpdate{Data: object(500)})))
	h.set(func(s *flow.Settings) { s.MetadataMaxBytes = 200 })
	const over = "validation_failed: Metadata cannot be larger than 200 bytes"
	update := func(g flow.Grant, data []byte, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.UpdateUser(t.Context(), browser, h.caller(g), flow.UserUpdate{Data: data})), want)
	}
	admin := func(g flow.Grant, user, app []byte, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, service, g.User.ID,
			flow.Attributes{UserMetadata: user, AppMetadata: app})), want)
	}
	update(large, object(501), over)
	update(large, []byte(`{"b":1}`), over)
	update(large, object(400), "")
	update(large, object(400), "")
	update(large, object(401), over)
	admin(large, object(401), nil, over)
	update(large, []byte(`{"a":null}`), "")

	g := h.confirmed("mia@example.org")
	app := len(`{"provider":"email","providers":["email"]}`)
	update(g, object(200-app), "")
	update(g, object(201-app), over)
	admin(g, nil, []byte(`{"b":1}`), over)
	admin(g, nil, []byte(`{"email":"x"}`), over) // of app_metadata no member is the service's own
	admin(g, object(150-app), []byte(`{"b":1}`), "")

	signUp := func(data []byte) error {
		_, err := h.SignUp(t.Context(), browser, flow.SignUp{Email: "tom@example.org", Password: "sesame",
			Data: data})
		return err
	}
	guest := func(data []byte) error { _, err := h.SignUpAnonymous(t.Context(), browser, data); return err }
	otp := func(data []byte) error {
		return h.SendOTP(t.Context(), browser, flow.OTP{Email: "ida@example.org", CreateUser: true, Data: data})
	}
	create := func(data []byte) error {
		_, err := h.AdminCreate(t.Context(), browser, service,
			flow.Attributes{Email: ptr("eva@example.org"), UserMetadata: object(100), AppMetadata: data[:]})
		return err
	}
	invite := func(data []byte) error {
		_, err := h.Invite(t.Context(), browser, service, flow.Invitation{Email: "udo@example.org", Data: data})
		return err
	}
	refused(t, signUp(object(201)), over)
	accepted(t, signUp(object(200)))
	refused(t, guest(object(201)), over)
	accepted(t, guest(object(200)))
	refused(t, otp(object(201)), over)
	accepted(t, otp(object(200)))
	refused(t, create(object(101)), over)
	accepted(t, create(object(100)))
	refused(t, invite(object(201)), over)
	accepted(t, invite(object(200)))

	// A sign-up with data of its own for an invited address: confirming must not fail, and nothing grows.
	must.Succeed(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Email: "udo@example.org", Password: "sesame",
		Data: []byte(`{"b":"` + strings.Repeat("y", 100) + `"}`)})))
	u := h.redeem("signup", h.newest("confirmation", "udo@example.org").Hash).User
	if m := members(t, u.UserMetadata); m["b"] != nil || m["a"] == nil || m["email_verified"] != true {
		t.Errorf("the invited user's metadata: %s", u.UserMetadata)
	}
	h.set(func(s *flow.Settings) { s.MetadataMaxBytes = 0 })
	update(g, object(5000), "")
}
