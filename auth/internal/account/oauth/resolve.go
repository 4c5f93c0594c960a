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

// providerEmails are the addresses that a provider gave for a user.
type providerEmails struct {
	all      []string // each once
	verified []string
	// best is the primary address if it is verified, else the first verified address, else the primary address, else
	// the last address; "" if there is none.
	best string
}

func (a *providerEmails) bestVerified() bool { return a.has(a.best) }

// has reports whether the provider has verified an address.
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

// resolution is what the identity of a provider leads to (docs/providers.md#who-signs-in).
type resolution uint8

const (
	userKnown     resolution = iota + 1 // the identity is known
	userLinked                          // the identity is new; a user has proven one of its addresses
	userCreated                         // the identity is new; no user has proven an address
	userAmbiguous                       // the identity is new; several users have proven addresses
)

// accountDecision says which user is signed in. It is comparable: the decision is made again under the lock, and must
// be the same.
type accountDecision struct {
	resolution resolution
	user       uuid.UUID // of userKnown and userLinked
	email      string    // of userCreated: the new user's address; "" if there is none, or another user has it
	// free: no other user has the best address.
	free bool
	// yields is the user who loses the best address, because only a setting had confirmed it; Nil: none.
	yields uuid.UUID
	// abandoned is a user who has only this identity and never signed in, and who is deleted before the identity is
	// added again; Nil: none.
	abandoned uuid.UUID
}

// resolveAccount decides which account an identity leads to. An address leads to a user only if this provider has
// verified it and the user has proven it, by confirming the address or by another provider that has verified it.
// Without such a user, the identity gets an account that has the address and was confirmed by nobody, or only by a
// setting.
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
		} else if m.Email == a.best { // of unconfirmed accounts, the one with the best address is preferred
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
	case !d.free: // not proven: a proven address would have led to its user
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

// emailOutcome says what happens to a user's address in a sign-in by a provider.
type emailOutcome struct {
	// adopt is the proven address that a user without an address gets.
	adopt string
	// confirm: the user's address is proven.
	confirm bool
	// claim: the account was unconfirmed until now, so other ways into it are removed.
	claim bool
	// confirmByMail: a mail to the user requests confirmation of the address.
	confirmByMail bool
	// refuse: the sign-in is refused, with confirmByMail until the user has confirmed the address.
	refuse bool
	// unproven: only a setting confirms the address. live: only a setting had confirmed the address so far, so that the
	// account was in use, and its metadata and verified factors stay.
	unproven, live bool
}

// refusesOutright reports whether the sign-in is refused with nothing to confirm.
func (v emailOutcome) refusesOutright() bool { return v.refuse && !v.confirmByMail }

// emailRules are the settings that an emailOutcome depends on.
type emailRules struct {
	optional, autoconfirm, allowUnverified, claim bool
}

// reconcileEmail returns the outcome for an existing or a new user. Only the proven address becomes confirmed, never
// another address of the account.
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

// confirmedAt returns the time at which a new user's address counts as confirmed; zero: it is unconfirmed.
func (v emailOutcome) confirmedAt(now time.Time) time.Time {
	if v.confirm {
		return now
	}
	return time.Time{}
}

// maxProfile limits the size of a provider's profile, which gets into every token of the user.
const maxProfile = 16 << 10

// storableAddress reports whether a provider's address can be stored and compared. The address need not be valid by the
// rules of this service.
func storableAddress(s string) bool {
	return s != "" && len(s) <= 255 && utf8.ValidString(s) && strings.Contains(s, "@") &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// nameKeys are the members that Apple sends on the first sign-in only.
var nameKeys = []string{"name", "full_name", "family_name", "given_name", "middle_name", "nickname"}

// identityData returns the data that is stored with an identity and merged into user_metadata. Apple's names
// stay from the previous data, old, if the new data has none. Values that PostgreSQL would refuse are left out.
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
		_ = json.Unmarshal(old, &before) // from PostgreSQL
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

// matched returns the address by which other identities are linked to the account: only a verified address.
func (a *providerEmails) matched() string {
	if a.bestVerified() {
		return a.best
	}
	return ""
}
