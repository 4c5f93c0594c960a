package account_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/passkey"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/webauthn/webauthntest"
	"gatehouse/shared/must"
)

const (
	passkeyRP     = "app.example.org"
	passkeyOrigin = "https://app.example.org"
)

func passkeysOn(s *flow.Settings) {
	s.WebAuthn = flow.WebAuthnSettings{RPID: passkeyRP, RPDisplayName: "App", RPOrigins: []string{passkeyOrigin},
		ChallengeLife: 5 * time.Minute}
	s.Passkeys = flow.PasskeySettings{Enabled: true, MaxPerUser: 10, UserVerification: "required", AAL: "aal2"}
	s.Factors.WebAuthn = flow.FactorSwitches{Enroll: true, Verify: true}
	recoveryCodes(s)
}

// passkey gives a user a passkey and returns its device and id.
func (h *house) passkey(g flow.Grant) (*webauthntest.Authenticator, uuid.UUID) {
	h.t.Helper()
	d, keys := &webauthntest.Authenticator{Flags: webauthntest.UV}, passkey.New(h.Core)
	o, err := keys.RegistrationOptions(h.t.Context(), browser, h.caller(g))
	accepted(h.t, err)
	raw, err := d.Create(o.Options, passkeyOrigin)
	accepted(h.t, err)
	c, err := keys.Register(h.t.Context(), browser, h.caller(g), passkey.Answer{Challenge: o.Challenge, Credential: raw})
	accepted(h.t, err)
	return d, c.ID
}

// passkeyIn signs in with the newest passkey of a device.
func (h *house) passkeyIn(d *webauthntest.Authenticator) flow.Grant {
	h.t.Helper()
	keys := passkey.New(h.Core)
	o := keys.SignInOptions(browser)
	raw, err := d.Get(o.Options, passkeyOrigin)
	accepted(h.t, err)
	g, err := keys.SignIn(h.t.Context(), browser, passkey.Answer{Challenge: o.Challenge, Credential: raw})
	accepted(h.t, err)
	return g
}

// credentials counts a user's passkeys, security keys and recovery codes: "2 1 10".
func (h *house) credentials(user uuid.UUID) string {
	h.t.Helper()
	return storetest.Text(h.t, h.db, `select concat_ws(' ', count(*) filter (where factor_id is null), count(factor_id), (
		select count(*) from recovery_codes r join factors f on f.id = r.factor_id where f.user_id = $1))
		from webauthn_credentials where user_id = $1`, user.String())
}

// A passkey is no identity, and a session that is continued by a link is no longer the passkey's own: the deletion of a
// passkey ends it all the same, and a first factor ends it with the codes that were given out for it.
func TestPasskey_link(t *testing.T) {
	t.Parallel()
	h := open(t, passkeysOn, linking)
	mia := h.confirmed("mia@example.org")
	d, id := h.passkey(mia)
	in := h.passkeyIn(d)
	linked := h.link(in, person("github", "17", "!else@example.org"))
	if got := h.level(linked); got != "aal2 oauth passkey" {
		t.Errorf("linked: %s", got)
	}
	u := h.user(mia.User.ID)
	if got := len(u.Identities); got != 2 || string(u.AppMetadata) != `{"provider": "email", "providers": ["email", "github"]}` {
		t.Errorf("%d identities, %s", got, u.AppMetadata)
	}
	if n := storetest.Text(t, h.db, `select count(*)::text from sessions where passkey_id is not null and id = $1`,
		linked.Session.String()); n != "0" {
		t.Error("the linked session is the passkey's")
	}
	h.pass(time.Second)
	accepted(t, passkey.New(h.Core).Delete(t.Context(), browser, h.caller(mia), id))
	ended(t, h, in)
	ended(t, h, linked)
	h.caller(mia)

	d, _ = h.passkey(mia)
	in = h.passkeyIn(d)
	c := h.caller(in)
	p := person("gitlab", "18", "!else@example.org")
	p.LinkTo = &c
	code := h.pkceArrival(p)
	in = h.passkeyIn(d)
	linked = h.link(in, person("google", "19", "!else@example.org"))
	h.pass(time.Second)
	h.verified(mia, h.app(mia, ""))
	ended(t, h, in)
	ended(t, h, linked)
	refused(t, must.ErrOf(h.exchange(code, verifier)), noFlow)
	if got := h.level(h.passkeyIn(d)); got != "aal1 passkey" {
		t.Errorf("after the first factor: %s", got)
	}
}

// The last identity stays, whatever passkeys there are.
func TestPasskey_unlink(t *testing.T) {
	t.Parallel()
	h := open(t, passkeysOn, linking)
	mia := h.confirmed("mia@example.org")
	h.passkey(mia)
	err := h.UnlinkIdentity(t.Context(), browser, h.caller(mia), h.user(mia.User.ID).Identities[0].ID.String(), "")
	refused(t, err, "single_identity_not_deletable: User must have at least 1 identity after unlinking")
}

// What leaves the account with its holder leaves the passkeys there; what gives it to another does not.
func TestPasskey_lives(t *testing.T) {
	t.Parallel()
	h := open(t, passkeysOn, func(s *flow.Settings) { s.Email.SecureChange = false })
	mia := h.confirmed("mia@example.org")
	d, _ := h.passkey(mia)
	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	mia = h.redeem("recovery", h.newest("recovery", "mia@example.org").Hash)
	accepted(t, must.ErrOf(h.update(mia, flow.UserUpdate{Email: "mia@example.com"})))
	h.redeem("email_change", h.newest("email_change", "mia@example.com").Hash)
	in := h.passkeyIn(d)
	if got := h.credentials(mia.User.ID); got != "1 0 0" {
		t.Errorf("after a recovery and a change of address: %s", got)
	}

	up := h.verified(in, h.app(in, "app"))
	h.generated(up)
	storetest.Exec(t, h.db, `insert into factors (id, user_id, kind, friendly_name, phone, created_at, updated_at, verified_at)
		values (gen_random_uuid(), $1, 'webauthn', 'key', '', now(), now(), now())`, mia.User.ID.String())
	storetest.Exec(t, h.db, `insert into webauthn_credentials (id, user_id, factor_id, credential_id, public_key, backup_eligible,
		backed_up, created_at) select gen_random_uuid(), user_id, id, 'x', 'x', false, false, now() from factors where kind = 'webauthn'`)
	if got := h.credentials(mia.User.ID); got != "1 1 10" {
		t.Fatalf("before the claim: %s", got)
	}
	accepted(t, h.AdminClaim(t.Context(), browser, flow.Actor{Role: "service_role"}, mia.User.ID))
	if got := h.credentials(mia.User.ID); got != "0 0 0" {
		t.Errorf("after the claim: %s", got)
	}
}

// The proof of an address that nobody had proven ends passkeys, which are ways in, and spares second factors.
func TestPasskey_proof(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"a magic link", "a provider"} {
		h := open(t, passkeysOn, autoconfirm)
		squatter := h.squat(flow.SignUp{Email: squatted})
		d, _ := h.passkey(squatter)
		h.generated(h.verified(squatter, h.app(squatter, "")))
		in := h.passkeyIn(d)
		h.pass(time.Second)
		proofs[by](h, squatted)
		ended(t, h, in)
		if got := h.credentials(squatter.User.ID); got != "0 0 10" {
			t.Errorf("proven by %s: %s", by, got)
		}
		if n := len(h.user(squatter.User.ID).Factors); n != 2 {
			t.Errorf("proven by %s: %d factors, want 2", by, n)
		}
	}
}

// A session that used a factor loses its level with the factor, also one that a passkey opened at aal2; a session that
// the passkey alone brought to aal2 keeps it.
func TestPasskey_factorRemoved(t *testing.T) {
	t.Parallel()
	h := open(t, passkeysOn)
	mia := h.confirmed("mia@example.org")
	d, _ := h.passkey(mia)
	first := h.passkeyIn(d)
	e := h.app(first, "")
	used := h.verified(first, e) // binds the passkey
	alone := h.passkeyIn(d)
	if h.level(used) != "aal2 totp passkey" || h.level(alone) != "aal2 passkey" {
		t.Errorf("%s and %s", h.level(used), h.level(alone))
	}
	accepted(t, h.UnenrollFactor(t.Context(), browser, h.caller(alone), e.Factor.ID))
	for want, g := range map[string]flow.Grant{"aal1 passkey": used, "aal2 passkey": alone} {
		g, err := h.Refresh(t.Context(), browser, g.RefreshToken)
		if accepted(t, err); h.level(g) != want {
			t.Errorf("after the removal %s, want %s", h.level(g), want)
		}
	}
}

// Where administrators need aal2, a passkey's counts.
func TestPasskey_administrator(t *testing.T) {
	t.Parallel()
	h := open(t, passkeysOn, func(s *flow.Settings) { s.AdminRequireAAL2 = true })
	mia := h.confirmed("mia@example.org")
	d, _ := h.passkey(mia)
	storetest.Exec(t, h.db, `update users set role = 'supabase_admin'`)
	for want, in := range map[string]flow.Grant{
		"": h.passkeyIn(d),
		flow.ErrAdminAAL2.Code + ": " + flow.ErrAdminAAL2.Msg: h.signedIn("mia@example.org"),
	} {
		refused(t, must.ErrOf(h.AuthenticateAdmin(t.Context(), in.AccessToken)), want)
	}
}

// An anonymous user gets a passkey once the address is confirmed.
func TestPasskey_anonymous(t *testing.T) {
	t.Parallel()
	h := open(t, passkeysOn)
	g, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	accepted(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "mia@example.org"})))
	g = h.redeem("email_change", h.newest("email_change", "mia@example.org").Hash)
	d, _ := h.passkey(g)
	if in := h.passkeyIn(d); in.User.ID != g.User.ID || in.User.IsAnonymous {
		t.Errorf("%+v", in.User)
	}
}

// A sign-in whose user or passkey changes after they were read is answered by what they are at the end.
func TestPasskey_changedMeanwhile(t *testing.T) {
	t.Parallel()
	const unknown = "webauthn_verification_failed: Credential verification failed"
	for name, c := range map[string]struct {
		change func(b *store.Batch, user, passkey uuid.UUID, now time.Time)
		want   string
	}{
		"banned": {func(b *store.Batch, user, _ uuid.UUID, now time.Time) {
			b.UpdateUser(store.UserPatch{ID: user, Now: now, BannedUntil: new(now.Add(time.Hour))})
		}, "user_banned: User is banned"},
		"deleted": {func(b *store.Batch, user, _ uuid.UUID, _ time.Time) { b.DeleteUser(user) }, unknown},
		"soft-deleted": {func(b *store.Batch, user, _ uuid.UUID, now time.Time) {
			b.EraseUser(store.EraseUser{ID: user, Now: now, Email: "erased"})
		}, unknown},
		"passkey deleted": {func(b *store.Batch, user, passkey uuid.UUID, now time.Time) {
			b.DeletePasskey(new(store.Credential), user, passkey, uuid.Nil, now)
		}, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, passkeysOn)
			mia := h.confirmed("mia@example.org")
			d, id := h.passkey(mia)
			keys, done := passkey.New(h.Core), make(chan error, 1)
			o := keys.SignInOptions(browser)
			raw, err := d.Get(o.Options, passkeyOrigin)
			accepted(t, err)
			accepted(t, h.db.InTx(t.Context(), func(tx *store.Tx) error {
				if _, err := tx.LockUser(t.Context(), mia.User.ID); err != nil {
					return err
				}
				go func() {
					_, err := keys.SignIn(t.Context(), browser, passkey.Answer{Challenge: o.Challenge, Credential: raw})
					done <- err
				}()
				h.awaitLock()
				b := tx.Batch()
				c.change(b, mia.User.ID, id, h.clock())
				return b.Send(t.Context())
			}))
			refused(t, <-done, c.want)
			if strings.Contains(h.trail(), "login_failed") {
				t.Errorf("audit log %s", h.trail())
			}
		})
	}
}
