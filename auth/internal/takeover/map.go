package takeover

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// pendingLife is how long, after the takeover began, an unconfirmed sign-up that was copied can still be confirmed.
const pendingLife = 30 * 24 * time.Hour

// mapper converts rows of the source to rows of our tables. The result depends only on the row and the mapper's fields,
// so a row that is converted again gives the same result.
type mapper struct {
	Settings
	// begun is when the takeover began, which replaces times that are missing in the source. now is when this run
	// began.
	begun, now time.Time
	// withoutPasswords is true if passwords in an unknown form are left out. Otherwise they are an error.
	withoutPasswords bool
	// custom maps the source's names custom:NAME of providers to ours.
	custom map[string]string
}

// past returns t, or clock if t is later. clock is the source's time when the row was read. A row with a time in the
// future is read again by the next pass.
func past(t, clock time.Time) time.Time {
	if t.After(clock) {
		return clock
	}
	return t
}

// object returns a column that should hold a JSON object, or {} if it holds anything else.
func object(text []byte) json.RawMessage {
	if len(text) == 0 || text[0] != '{' {
		return json.RawMessage("{}")
	}
	return text
}

// unlock decrypts a column if it is encrypted. id is the id of its row.
func (m *mapper) unlock(text string, id uuid.UUID) (string, error) {
	e, sealed := former.ParseEncrypted(text)
	if !sealed {
		return text, nil
	}
	return e.Open(m.Keys, id)
}

// user converts a user, with the pending sign-up if the user has not confirmed an address.
func (m *mapper) user(u *former.User) (store.CarriedUser, error) {
	gone := !u.DeletedAt.IsZero()
	created := past(cmp.Or(u.CreatedAt, m.begun), u.Clock)
	c := store.CarriedUser{User: store.User{
		ID: u.ID, Aud: cmp.Or(u.Aud, m.Audience), Role: cmp.Or(u.Role, m.Role),
		IsAnonymous: u.Anonymous && u.EmailConfirmedAt.IsZero() && u.PhoneConfirmedAt.IsZero(),
		CreatedAt:   created, UpdatedAt: past(cmp.Or(u.UpdatedAt, created), u.Clock), LastSignInAt: u.LastSignInAt,
		EmailConfirmedAt: u.EmailConfirmedAt, PhoneConfirmedAt: u.PhoneConfirmedAt, InvitedAt: u.InvitedAt,
		BannedUntil: u.BannedUntil, DeletedAt: u.DeletedAt, ConfirmationSentAt: u.ConfirmationSentAt,
		RecoverySentAt: u.RecoverySentAt, EmailChangeSentAt: u.EmailChangeSentAt,
		PhoneChangeSentAt:      u.PhoneChangeSentAt,
		ReauthenticationSentAt: u.ReauthenticationSentAt,
		AppMetadata:            json.RawMessage("{}"), UserMetadata: json.RawMessage("{}"),
	}}
	if gone {
		return c, nil
	}
	c.Email, c.Phone = address.Fold(u.Email), address.FoldPhone(u.Phone)
	c.NewEmail, c.NewPhone = address.Fold(u.NewEmail), address.FoldPhone(u.NewPhone)
	if c.NewEmail != "" && u.ConfirmStatus == 1 {
		c.CurrentEmailProven, c.NewEmailProven = u.CurrentTokenGone, u.NewTokenGone
	}
	c.AppMetadata = object(u.AppMetadata)
	hash, err := m.password(u)
	if err != nil {
		return c, err
	}
	if !u.Pending() {
		c.UserMetadata = object(u.UserMetadata)
		c.PasswordHash = hash
		return c, nil
	}
	c.Pending = m.pending(u, &c.User, hash)
	return c, nil
}

// password returns the user's password hash, or "" if the user has none.
func (m *mapper) password(u *former.User) (string, error) {
	if u.Password == "" || !u.DeletedAt.IsZero() || invited(u) {
		return "", nil
	}
	hash, err := m.unlock(u.Password, u.ID)
	if err != nil {
		return "", fmt.Errorf("user %s: the password does not open", u.ID)
	}
	if password.ValidImport(hash) == nil {
		return hash, nil
	}
	if m.withoutPasswords {
		return "", nil
	}
	return "", fmt.Errorf("user %s: the password is in a form or of a cost that is not read here", u.ID)
}

func invited(u *former.User) bool {
	return !u.InvitedAt.IsZero() && u.EmailConfirmedAt.IsZero() && u.PhoneConfirmedAt.IsZero()
}

// pending returns the token of a pending sign-up. It is made a microsecond older than the link that the former service
// has mailed for the sign-up, so that the link counts as the user's newer token.
func (m *mapper) pending(u *former.User, c *store.User, hash string) *store.Token {
	return &store.Token{
		ID: uuid.New(), User: u.ID, Kind: store.KindSignup, Address: cmp.Or(c.Email, c.Phone), PasswordHash: hash,
		UserMetadata: signupData(u.UserMetadata), CreatedAt: u.ConfirmationSentAt.Add(-time.Microsecond),
		ExpiresAt: m.begun.Add(pendingLife),
	}
}

// signupData returns the metadata that the user gave at sign-up, without the members that the former service added; nil
// if there is none.
func signupData(text []byte) json.RawMessage {
	var all map[string]json.RawMessage
	if json.Unmarshal(object(text), &all) != nil {
		return nil
	}
	for _, name := range []string{"sub", "email", "email_verified", "phone_verified", "phone"} {
		delete(all, name)
	}
	if len(all) == 0 {
		return nil
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err) // cannot fail: the members were parsed above
	}
	return b
}

// identity converts an identity.
func (m *mapper) identity(i *former.Identity) store.Identity {
	created := cmp.Or(i.CreatedAt, past(cmp.Or(i.UserCreatedAt, m.begun), i.Clock))
	updated := cmp.Or(i.UpdatedAt, past(cmp.Or(i.UserUpdatedAt, created), i.Clock))
	data := object(i.Data)
	return store.Identity{
		ID: i.ID, UserID: i.UserID, Provider: m.provider(i.Provider), ProviderID: i.ProviderID,
		Email: provenEmail(i.Provider, data),
		Data:  data, LastSignInAt: i.LastSignInAt, CreatedAt: created, UpdatedAt: updated,
	}
}

func (m *mapper) provider(name string) string { return cmp.Or(m.custom[name], name) }

// provenEmail returns the email address in an identity's data, or "" if the provider has not verified it.
func provenEmail(provider string, data json.RawMessage) string {
	var claims map[string]any // a map, since the fields of a struct would match names in upper and lower case
	if json.Unmarshal(data, &claims) != nil || provider != "email" && claims["email_verified"] != true {
		return ""
	}
	email, _ := claims["email"].(string)
	return address.Fold(email)
}

// customProviders maps the source's names custom:NAME of providers to the names that they have in this service, where
// AUTH_EXTERNAL_OIDC_<NAME>_* configures them. A provider keeps its name if another one would get the same name, or if
// one of our own providers has it. What an earlier run has decided does not change, even if providers were added to the
// source since that run.
func customProviders(names []string, ours map[string]bool, decided map[string]string) map[string]string {
	short := func(name string) string {
		return strings.ToLower(strings.NewReplacer("-", "_", ":", "_").Replace(strings.TrimPrefix(name, "custom:")))
	}
	uses, renamed := map[string]int{}, maps.Clone(decided)
	if renamed == nil {
		renamed = map[string]string{}
	}
	for name, s := range decided {
		if !slices.Contains(names, name) {
			uses[s]++
		}
	}
	for _, name := range names {
		uses[short(name)]++
	}
	for _, name := range names {
		if _, ok := decided[name]; ok {
			continue
		}
		s := short(name)
		if _, taken := ours[s]; taken || s == "" || uses[s] > 1 {
			s = name
		}
		renamed[name] = s
	}
	return renamed
}

// factors converts the factors of one user, which must be sorted by age. dropped has the factors that are not copied.
func (m *mapper) factors(list []*former.Factor, dropped map[uuid.UUID]string) []store.CarriedFactor {
	var out []store.CarriedFactor
	own, taken := map[string]bool{}, map[string]bool{}
	for _, f := range list {
		own[f.Name] = own[f.Name] || f.Reason == "" && dropped[f.ID] == ""
	}
	for _, f := range list {
		if f.Reason != "" || dropped[f.ID] != "" {
			continue
		}
		base := f.Name
		if strings.TrimSpace(base) == "" {
			base = ""
		}
		name := base
		for n := 2; taken[name] || n > 2 && own[name]; n++ { // a generated name must differ from all others
			name = strings.TrimLeft(fmt.Sprintf("%s %d", base, n), " ")
		}
		taken[name] = true
		key, err := m.totpKey(f)
		if err != nil || f.Kind == string(store.FactorTOTP) && key == nil {
			continue
		}
		created := cmp.Or(f.CreatedAt, m.begun)
		verified := cmp.Or(f.UpdatedAt, created)
		c := store.CarriedFactor{UserID: f.UserID, Factor: store.Factor{
			ID: f.ID, Kind: store.FactorKind(f.Kind), FriendlyName: name, CreatedAt: created, UpdatedAt: verified,
			VerifiedAt: verified, LastChallengedAt: f.LastChallengedAt,
		}}
		switch c.Kind {
		case store.FactorPhone:
			c.Phone = address.FoldPhone(f.Phone)
		case store.FactorWebAuthn:
			if c.Credential = securityKey(f); c.Credential == nil {
				continue
			}
			c.Credential.CreatedAt = created
		default:
			c.Secret = m.Root.Seal(secret.Factors, key, f.ID[:])
		}
		out = append(out, c)
	}
	return out
}

// totpKey returns the key of a TOTP factor, or nil if it is missing or cannot be read.
func (m *mapper) totpKey(f *former.Factor) ([]byte, error) {
	if f.Kind != string(store.FactorTOTP) {
		return nil, nil
	}
	text, err := m.unlock(f.Secret, f.ID)
	if err != nil {
		return nil, err
	}
	key, _ := former.TOTPKey(text)
	return key, nil
}

// session converts a session that has a valid refresh token. ok is false if the token cannot be read.
func (m *mapper) session(s *former.Session) (c store.CarriedSession, ok bool, err error) {
	text := s.Token
	if s.Version == 2 {
		plain, err := m.unlock(s.Key, s.ID)
		if err != nil {
			return c, false, fmt.Errorf("session %s: the key does not open", s.ID)
		}
		key, ok := former.SessionKey(plain)
		if !ok {
			return c, false, nil
		}
		text = former.NewVersion2(s.ID, uint64(s.Counter), key)
	}
	t, ok := former.ParseToken(text)
	if !ok {
		return c, false, nil
	}
	created := cmp.Or(s.CreatedAt, s.RefreshedAt, m.begun)
	refreshed := created
	for _, at := range []time.Time{s.RefreshedAt, s.TokenAt} {
		if at.After(refreshed) {
			refreshed = at
		}
	}
	c = store.CarriedSession{SecretHash: t.SecretHash(m.Root), Session: store.Session{
		ID: s.ID, UserID: s.UserID, CreatedAt: created, RefreshedAt: past(refreshed, s.Clock), UserAgent: s.UserAgent,
		IP: s.IP, AAL: s.AAL,
		AMR: amr(s.AMR), Tag: s.Tag, FactorID: s.FactorID, NotAfter: s.NotAfter,
	}}
	if t.Version == 1 {
		c.TokenMAC = t.MAC(m.Root)
	}
	return c, true, nil
}

// amr returns the claim amr as JSON: the newest method first, methods of the same time in alphabetical order.
func amr(claims []former.Claim) json.RawMessage {
	type method struct {
		Method    string `json:"method"`
		Timestamp int64  `json:"timestamp"`
	}
	list := make([]method, len(claims))
	for i, c := range claims {
		list[i] = method{c.Method, c.At.Unix()}
	}
	slices.SortFunc(list, func(a, b method) int {
		return cmp.Or(cmp.Compare(b.Timestamp, a.Timestamp), strings.Compare(a.Method, b.Method))
	})
	b, err := json.Marshal(list)
	if err != nil {
		panic(err) // cannot fail: the list has only texts and numbers
	}
	return b
}

// The reasons why a mailed link is not copied.
const (
	leftExpired = "expired"
	leftCodes   = "codes only"
	leftUser    = "user left out"
	leftFlow    = "without its PKCE flow"
	leftUsed    = "no longer valid"
)

// flowMethods maps each kind of mailed link to the authentication methods of the PKCE flows that such a link can
// continue. Kinds and methods are spelled as in the former service's database, the methods as in its column
// flow_state.authentication_method.
var flowMethods = map[string][]string{
	"confirmation_token":         {"email/signup", "magiclink", "invite"},
	"recovery_token":             {"recovery", "magiclink"},
	"email_change_token_current": {"email_change"},
	"email_change_token_new":     {"email_change"},
}

// link converts a mailed link, and the PKCE flow that the link continues. If the link is not copied, reason says why.
func (m *mapper) link(l *former.MailedLink) (t store.NewToken, flow *store.Flow, reason string, err error) {
	u := l.User
	if u == nil || u.Reason != "" || !u.DeletedAt.IsZero() {
		return t, nil, leftUser, nil
	}
	email, unconfirmed := address.Fold(u.Email), u.EmailConfirmedAt.IsZero()
	t.Token = store.Token{ID: uuid.New(), User: u.ID, Address: email, Identity: l.Identity}
	bounded := true
	switch {
	case email == "" || l.Type == "phone_change_token" || l.Type == "reauthentication_token":
		return t, nil, leftCodes, nil
	case l.Type == "confirmation_token" && !unconfirmed:
		return t, nil, leftUsed, nil
	case l.Type == "confirmation_token":
		bounded = false
		t.CreatedAt, t.Kind = u.ConfirmationSentAt, store.KindSignup
		if !u.InvitedAt.IsZero() {
			t.Kind = store.KindInvite
		} else if u.Pending() {
			if t.PasswordHash, err = m.password(u); err != nil {
				return t, nil, "", err
			}
			t.UserMetadata = signupData(u.UserMetadata)
		}
	case l.Type == "recovery_token":
		t.CreatedAt, t.Kind = u.RecoverySentAt, store.KindRecovery
	case l.Type == "email_change_token_current":
		t.CreatedAt, t.Kind = u.EmailChangeSentAt, store.KindEmailChangeCurrent
	case l.Type == "email_change_token_new":
		t.CreatedAt, t.Kind, t.Address = u.EmailChangeSentAt, store.KindEmailChangeNew, address.Fold(u.NewEmail)
	default:
		return t, nil, leftCodes, nil
	}
	if t.CreatedAt.IsZero() || t.Address == "" {
		return t, nil, leftUsed, nil
	}
	if l.RelatesTo != t.Address { // a code that was sent to the phone number
		return t, nil, leftCodes, nil
	}
	text, continues := strings.CutPrefix(l.Token, former.PKCEPrefix)
	hash, ok := former.LinkHash(text)
	if !ok {
		return t, nil, leftCodes, nil
	}
	t.LinkHash = bytes.Clone(hash[:])
	t.ExpiresAt = t.CreatedAt.Add(m.LinkLife)
	if last := m.now.Add(m.OTPLife); bounded && t.ExpiresAt.After(last) {
		t.ExpiresAt = last
	}
	if !t.ExpiresAt.After(m.now) {
		return t, nil, leftExpired, nil
	}
	if !continues {
		return t, nil, "", nil
	}
	if flow = flowOf(l, &t); flow == nil {
		return t, nil, leftFlow, nil
	}
	return t, flow, "", nil
}

// flowOf returns the PKCE flow that a link continues, and sets it in the link's token. It returns nil if there is no
// such flow.
func flowOf(l *former.MailedLink, t *store.NewToken) *store.Flow {
	for _, f := range l.Flows {
		if slices.Contains(flowMethods[l.Type], f.Method) &&
			(f.ChallengeMethod == "s256" || f.ChallengeMethod == "plain") {
			t.Flow = f.ID
			return &store.Flow{ID: f.ID, User: t.User, Method: f.Method, Challenge: f.Challenge,
				ChallengeMethod: f.ChallengeMethod,
				CreatedAt:       cmp.Or(f.CreatedAt, t.CreatedAt), ExpiresAt: t.ExpiresAt.Add(5 * time.Minute)}
		}
	}
	return nil
}
