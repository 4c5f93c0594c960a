package httpapi

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

// mia is the confirmed user whose JSON the tests of this file spell out.
func mia() store.User {
	at := func(text string) time.Time {
		v, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			panic(err)
		}
		return v
	}
	id := uuid.MustParse("7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10")
	data := `{"sub":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10","email":"mia@example.org","email_verified":true,"phone_verified":false,"nick":"mi"}`
	return store.User{
		ID: id, Aud: "authenticated", Role: "authenticated", Email: "mia@example.org",
		EmailConfirmedAt: at("2031-03-04T10:15:30.120045Z"), ConfirmationSentAt: at("2031-03-04T10:14:02.551201Z"),
		LastSignInAt: at("2031-03-05T07:00:01.004411Z"), PasswordHash: "$2a$secret",
		AppMetadata: json.RawMessage(`{"provider":"email","providers":["email"]}`), UserMetadata: json.RawMessage(data),
		CreatedAt: at("2031-03-04T10:14:02.480007Z"), UpdatedAt: at("2031-03-05T08:00:01.010203+01:00"),
		Identities: []store.Identity{{
			ID: uuid.MustParse("b1f3a7a2-7d34-4a0d-9f5e-0a4cc0ce6a11"), UserID: id, ProviderID: id.String(),
			Provider: "email",
			Email:    "mia@example.org", Data: json.RawMessage(data), LastSignInAt: at("2031-03-04T10:14:02.501100Z"),
			CreatedAt: at("2031-03-04T10:14:02.501140Z"), UpdatedAt: at("2031-03-04T10:15:30.121007Z"),
		}},
	}
}

func TestUserView(t *testing.T) {
	u := mia()
	want := `{"id":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10","aud":"authenticated","role":"authenticated","email":"mia@example.org","email_confirmed_at":"2031-03-04T10:15:30.120045Z","phone":"","confirmation_sent_at":"2031-03-04T10:14:02.551201Z","confirmed_at":"2031-03-04T10:15:30.120045Z","last_sign_in_at":"2031-03-05T07:00:01.004411Z","app_metadata":{"provider":"email","providers":["email"]},"user_metadata":{"sub":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10","email":"mia@example.org","email_verified":true,"phone_verified":false,"nick":"mi"},"identities":[{"identity_id":"b1f3a7a2-7d34-4a0d-9f5e-0a4cc0ce6a11","id":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10","user_id":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10","identity_data":{"sub":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10","email":"mia@example.org","email_verified":true,"phone_verified":false,"nick":"mi"},"provider":"email","last_sign_in_at":"2031-03-04T10:14:02.501100Z","created_at":"2031-03-04T10:14:02.501140Z","updated_at":"2031-03-04T10:15:30.121007Z","email":"mia@example.org"}],"created_at":"2031-03-04T10:14:02.480007Z","updated_at":"2031-03-05T07:00:01.010203Z","is_anonymous":false}`
	if d := cmp.Diff(want, string(AppendUser(nil, &u))); d != "" {
		t.Error(d)
	}

	// Absent things have no key; texts and metadata always have one.
	bare := store.User{ID: u.ID, CreatedAt: u.CreatedAt, UpdatedAt: u.UpdatedAt, IsAnonymous: true}
	want = `{"id":"7d0c3f0e-52a4-4a0e-9a52-0b6a3d1c9f10","aud":"","role":"","email":"","phone":"","app_metadata":{},"user_metadata":{},"identities":[],"created_at":"2031-03-04T10:14:02.480007Z","updated_at":"2031-03-05T07:00:01.010203Z","is_anonymous":true}`
	if d := cmp.Diff(want, string(AppendUser(nil, &bare))); d != "" {
		t.Error(d)
	}

	// Everything at once, in the order of the field table.
	full, at := u, u.CreatedAt
	full.Phone, full.PhoneConfirmedAt, full.InvitedAt, full.RecoverySentAt = "4915112345678", at, at, at
	full.NewEmail, full.EmailChangeSentAt, full.NewPhone, full.PhoneChangeSentAt = "new@example.org", at,
		"4915187654321", at
	full.ReauthenticationSentAt, full.BannedUntil, full.DeletedAt = at, at, at
	var keys []string
	dec := json.NewDecoder(strings.NewReader(string(AppendUser(nil, &full))))
	for depth, key := 0, true; ; {
		tok, err := dec.Token()
		if err != nil {
			break
		}
		switch v := tok.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
			} else {
				depth--
			}
			key = true
		default:
			if s, ok := v.(string); ok && depth == 1 && key {
				keys = append(keys, s)
				key = false
				continue
			}
			key = true
		}
	}
	order := "id aud role email email_confirmed_at invited_at phone phone_confirmed_at confirmation_sent_at " +
		"confirmed_at recovery_sent_at new_email email_change_sent_at new_phone phone_change_sent_at " +
		"reauthentication_sent_at last_sign_in_at app_metadata user_metadata identities created_at updated_at " +
		"banned_until deleted_at is_anonymous"
	if d := cmp.Diff(order, strings.Join(keys, " ")); d != "" {
		t.Error(d)
	}
	if got := confirmedAt(&full); !got.Equal(at) {
		t.Errorf("confirmed_at %s is not the earlier confirmation", got)
	}
	for _, secret := range []string{"$2a$", "password", "token"} {
		if strings.Contains(string(AppendUser(nil, &full)), secret) {
			t.Errorf("the view holds %q", secret)
		}
	}
}

func TestSettingsView(t *testing.T) {
	want := `{"external":{"apple":false,"azure":false,"bitbucket":false,"discord":false,"facebook":false,"figma":false,"github":false,"gitlab":false,"google":false,"keycloak":false,"linkedin":false,"notion":false,"slack":false,"snapchat":false,"spotify":false,"twitch":false,"twitter":false,"workos":false,"email":true,"phone":false,"anonymous_users":false},"disable_signup":false,"autoconfirm":false,"mailer_autoconfirm":false,"phone_autoconfirm":false,"sms_provider":"","saml_enabled":false,"saml_private_key_next_configured":false,"passkeys_enabled":false}`
	l := liveSettings{flows: &flow.Settings{Email: flow.EmailSettings{Enabled: true}}}
	if d := cmp.Diff(want, string(l.settingsBody())); d != "" {
		t.Error(d)
	}
	want = `*"email":false,"phone":true,"anonymous_users":true},"disable_signup":true,"autoconfirm":true,"mailer_autoconfirm":true,"phone_autoconfirm":true,"sms_provider":"twilio",*`
	l = liveSettings{flows: &flow.Settings{Anonymous: true, DisableSignup: true,
		Phone: flow.PhoneSettings{Enabled: true, Autoconfirm: true}, Email: flow.EmailSettings{Autoconfirm: true}}}
	l.SMSProvider = "twilio"
	if got := string(l.settingsBody()); !like(got, want) {
		t.Error(got)
	}
}

// openapi.json names every provider, and no other.
func TestSettingsView_providers(t *testing.T) {
	var doc struct {
		Components struct {
			Schemas struct {
				Settings struct {
					Properties struct {
						External struct{ Properties map[string]any }
					}
				}
			}
		}
	}
	must.Succeed(t, json.Unmarshal(OpenAPI(), &doc))
	want := append(provider.Names(), "email", "phone", "anonymous_users")
	slices.Sort(want)
	got := slices.Sorted(maps.Keys(doc.Components.Schemas.Settings.Properties.External.Properties))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the providers (-), and those of Settings.external in openapi.json (+):\n%s", d)
	}
}

func TestGrantView_weak(t *testing.T) {
	g := flow.Grant{AccessToken: "a.b.c", RefreshToken: "r", ExpiresIn: 3600, ExpiresAt: time.Unix(1930464001, 0),
		User: mia(), Type: "recovery", Weak: &password.Weak{Message: "too short", Reasons: []string{"length", "pwned"}}}
	if got, want := string(appendGrant(nil, &g)),
		`{"access_token":"a.b.c","token_type":"bearer","expires_in":3600,"expires_at":1930464001,"refresh_token":"r","user":{"id":*},"type":"recovery","weak_password":{"message":"too short","reasons":["length","pwned"]}}`; !like(got, want) {
		t.Error(got)
	}
}

func TestAppendString(t *testing.T) {
	for _, s := range []string{"", "plain", `q"b\`, "\x00\x1f\n\r\t\x7f", "äöü€😀", "a\xffb\xc3", "\u2028<&>"} {
		got := jsontext.AppendString([]byte("x"), s)[1:]
		var back string
		if err := json.Unmarshal(got, &back); err != nil || back != strings.ToValidUTF8(s, "\ufffd") {
			t.Errorf("%q became %s: %q, %v", s, got, back, err)
		}
	}
}

func BenchmarkUserView(b *testing.B) {
	u := mia()
	buf := make([]byte, 0, 2048)
	b.ReportAllocs()
	for b.Loop() {
		if buf = AppendUser(buf[:0], &u); len(buf) < 1000 {
			b.Fatal("too short")
		}
	}
}

// The same through encoding/json, for comparison.
func BenchmarkUserView_encodingJSON(b *testing.B) {
	u := mia()
	var v any
	must.Succeed(b, json.Unmarshal(AppendUser(nil, &u), &v))
	type identity struct {
		IdentityID, ID, UserID, Provider, Email string
		Data                                    json.RawMessage
		LastSignInAt, CreatedAt, UpdatedAt      time.Time
	}
	type user struct {
		ID, Aud, Role, Email, Phone                             string
		EmailConfirmedAt, ConfirmationSentAt, ConfirmedAt, Last time.Time
		App, User                                               json.RawMessage
		Identities                                              []identity
		CreatedAt, UpdatedAt                                    time.Time
	}
	i := u.Identities[0]
	in := user{u.ID.String(), u.Aud, u.Role, u.Email, u.Phone, u.EmailConfirmedAt, u.ConfirmationSentAt,
		confirmedAt(&u), u.LastSignInAt, u.AppMetadata, u.UserMetadata,
		[]identity{{i.ID.String(), i.ProviderID, i.UserID.String(), i.Provider, i.Email, i.Data, i.LastSignInAt,
			i.CreatedAt, i.UpdatedAt}}, u.CreatedAt, u.UpdatedAt}
	b.ReportAllocs()
	for b.Loop() {
		if text, err := json.Marshal(in); err != nil || len(text) < 500 {
			b.Fatal(err)
		}
	}
}
