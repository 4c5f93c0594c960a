package oauth

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
)

// providerEmails are the addresses of a user that an external provider gave.
type providerEmails struct {
	all      []string // without duplicates
	verified []string
	// best is the primary address if it is verified, else the first verified address, else the primary address, else
	// the last address. It is "" if there is no address.
	best string
}

func (a *providerEmails) bestVerified() bool { return a.has(a.best) }

// has reports whether the provider has verified this address.
func (a *providerEmails) has(address string) bool {
	return address != "" && slices.Contains(a.verified, address)
}

func judgeEmails(told []provider.Email) providerEmails {
	var a providerEmails
	var primary string
	for _, e := range told {
		if !storableAddress(e.Address) {
			continue
		}
		if !slices.Contains(a.all, e.Address) {
			a.all = append(a.all, e.Address)
		}
		if e.Verified && !slices.Contains(a.verified, e.Address) {
			a.verified = append(a.verified, e.Address)
		}
		if e.Primary {
			primary = e.Address
		}
	}
	switch {
	case a.has(primary):
		a.best = primary
	case len(a.verified) > 0:
		a.best = a.verified[0]
	case primary != "":
		a.best = primary
	case len(a.all) > 0:
		a.best = a.all[len(a.all)-1]
	}
	return a
}

// resolution says which account a provider's identity leads to (docs/providers.md#who-signs-in).
type resolution uint8

const (
	userKnown resolution = iota + 1 // an account has the identity
	// The identity is new, and is added to an existing account that has one of its addresses.
	userLinked
	userCreated   // the identity is new, and gets a new account
	userAmbiguous // the identity is new, but several users have proven its addresses
)

// accountDecision says which user is signed in. It is comparable: the decision is made again once the user is locked,
// and must be the same then.
type accountDecision struct {
	resolution resolution
	user       uuid.UUID // the account's user, if resolution is userKnown or userLinked
	// email is the address of the new user if resolution is userCreated; "" if the provider gave none, or another user
	// has it.
	email string
	// free is set if no other user has the best address.
	free bool
	// yields is the user who loses the best address, because only autoconfirm had confirmed it; Nil: there is none.
	yields uuid.UUID
	// abandoned is a user who has only this identity and never signed in. The user is deleted before the identity is
	// added to another account; Nil: there is none.
	abandoned uuid.UUID
}

// resolveAccount decides which account an identity leads to. An address of the identity leads to an account only if
// this provider has verified the address and the account's user has proven it, by confirming it or by another provider
// that has verified it. Without such a user, the identity is added to an account that has the address without a proof:
// nobody has confirmed it, or only autoconfirm has. Otherwise it gets a new account.
func resolveAccount(found []store.Match, a providerEmails) accountDecision {
	d := accountDecision{resolution: userCreated, email: a.best, free: true}
	var proven, waiting []uuid.UUID
	for _, m := range found {
		if m.How == store.ByAbandoned {
			d.abandoned = m.User
			continue
		}
		if m.How == store.BySubject {
			if d.resolution != userKnown {
				d.resolution, d.user, d.email = userKnown, m.User, ""
			}
			continue
		}
		if m.How == store.ByLeaving && m.Email == a.best && a.bestVerified() && m.User != d.user {
			d.yields = m.User
			continue
		}
		if m.Email == a.best && m.User != d.user {
			d.free = false
		}
		if !a.has(m.Email) || m.How == store.ByLeaving {
			continue
		}
		if m.How == store.ByConfirmed || m.How == store.ByIdentity {
			if !slices.Contains(proven, m.User) {
				proven = append(proven, m.User)
			}
		} else if m.Email == a.best { // among unconfirmed accounts, the one with the best address is preferred
			waiting = slices.Insert(waiting, 0, m.User)
		} else {
			waiting = append(waiting, m.User)
		}
	}
	switch {
	case d.resolution == userKnown:
	case len(proven) > 1:
		return accountDecision{resolution: userAmbiguous}
	case len(proven) == 1:
		d = accountDecision{resolution: userLinked, user: proven[0], abandoned: d.abandoned}
	case len(waiting) > 0:
		d = accountDecision{resolution: userLinked, user: waiting[0], abandoned: d.abandoned}
	case !d.free: // another user has the address, but has not proven it
		d.email = ""
	}
	if d.resolution != userCreated && d.yields != uuid.Nil {
		d.yields, d.free = uuid.Nil, false
	}
	if d.resolution == userLinked {
		d.free = !slices.ContainsFunc(found, func(m store.Match) bool { return m.Email == a.best && m.User != d.user })
	}
	return d
}

// emailOutcome says what happens to the user's address in a sign-in with an external provider.
type emailOutcome struct {
	// adopt is the proven address that a user without an address gets; "": none.
	adopt string
	// confirm is set if the user's address becomes confirmed.
	confirm bool
	// claim is set if nobody had proven the address of the account until now. The other ways to sign in to the account
	// are then removed.
	claim bool
	// confirmByMail is set if the user gets a mail that asks to confirm the address.
	confirmByMail bool
	// refuse is set if the sign-in is refused. With confirmByMail, it is refused until the user has confirmed the
	// address.
	refuse bool
	// unproven is set if only autoconfirm confirms the address. live is set if until now only autoconfirm had confirmed
	// the address: the account was in use, so its metadata and verified factors stay.
	unproven, live bool
}

// refusesOutright reports whether the sign-in is refused and there is no address that the user could confirm.
func (v emailOutcome) refusesOutright() bool { return v.refuse && !v.confirmByMail }

// emailRules are the settings on which an emailOutcome depends.
type emailRules struct {
	optional, autoconfirm, allowUnverified, claim bool
}

// reconcileEmail returns what happens to the address of an existing or a new user u. Only an address that the provider
// has verified or autoconfirm accepts becomes confirmed, never another address of the account.
func reconcileEmail(d accountDecision, u store.User, a providerEmails, r emailRules) emailOutcome {
	if !u.EmailConfirmedAt.IsZero() {
		proves := u.EmailUnproven && a.has(u.Email)
		live := proves && r.claim && (u.PhoneConfirmedAt.IsZero() || u.PhoneUnproven)
		return emailOutcome{confirm: proves, claim: live, live: live}
	}
	if u.Email == "" {
		switch {
		case a.bestVerified() && d.free:
			return emailOutcome{adopt: a.best, confirm: true}
		case r.optional || !u.PhoneConfirmedAt.IsZero():
			return emailOutcome{}
		}
		return emailOutcome{refuse: true}
	}
	if a.has(u.Email) || r.autoconfirm && d.resolution != userLinked && u.Email == a.best {
		return emailOutcome{confirm: true, unproven: !a.has(u.Email),
			claim: d.resolution == userLinked || d.resolution == userKnown && u.PhoneConfirmedAt.IsZero()}
	}
	return emailOutcome{confirmByMail: true, refuse: !r.allowUnverified}
}

// confirmedAt returns the time at which a new user's address counts as confirmed; zero if the address is unconfirmed.
func (v emailOutcome) confirmedAt(now time.Time) time.Time {
	if v.confirm {
		return now
	}
	return time.Time{}
}

// maxProfile limits the size of a provider's profile, which is part of every access token of the user.
const maxProfile = 16 << 10

// storableAddress reports whether an address from a provider can be stored and compared. It need not be valid by this
// daemon's own rules for addresses.
func storableAddress(s string) bool {
	return s != "" && len(s) <= 255 && utf8.ValidString(s) && strings.Contains(s, "@") &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// nameKeys are the profile members that Apple sends only when a user signs in for the first time.
var nameKeys = []string{"name", "full_name", "family_name", "given_name", "middle_name", "nickname"}

// identityData returns the data that is stored with an identity and merged into user_metadata. If the provider is Apple
// and its profile has no name, the names in the previous data, old, stay: Apple sends them only at the first sign-in.
// Values that PostgreSQL would refuse are left out.
func identityData(p *provider.Profile, a *providerEmails, old json.RawMessage) json.RawMessage {
	data := map[string]any{}
	for name, value := range p.Data {
		if flow.Storable(name, 1) == nil && flow.Storable(value, 2) == nil {
			data[name] = value
		}
	}
	named := slices.ContainsFunc(nameKeys, func(key string) bool { return data[key] != nil })
	if p.Provider == "apple" && !named && len(old) > 0 {
		var before map[string]any
		_ = json.Unmarshal(old, &before) // valid, since it comes from PostgreSQL
		for _, key := range nameKeys {
			if v := before[key]; v != nil {
				data[key] = v
			}
		}
	}
	delete(data, "email")
	if a.best != "" {
		data["email"] = a.best
	}
	data["email_verified"], data["phone_verified"] = a.bestVerified(), false
	text, err := json.Marshal(data)
	if err != nil || len(text) > maxProfile {
		// Custom claims may have any size; the other members are short.
		delete(data, "custom_claims")
		for name, value := range data {
			if s, ok := value.(string); ok && len(s) > 2048 {
				delete(data, name)
			}
		}
		text = flow.MustJSON(data)
	}
	return text
}

// matched returns the address by which other identities are linked to the account: the best address if it is verified,
// else "".
func (a *providerEmails) matched() string {
	if a.bestVerified() {
		return a.best
	}
	return ""
}
