package account

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
)

// providerEmails are what a provider told of somebody's e-mail.
type providerEmails struct {
	all      []string // each once
	verified []string
	// best is the primary address if it is verified, else the first that is, else the primary, else the
	// last; "" without any.
	best string
}

func (a *providerEmails) bestVerified() bool { return a.has(a.best) }

// has says that the provider vouches for an address.
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

// resolution is what somebody whom a provider vouches for is to us (docs/providers.md#who-signs-in).
type resolution uint8

const (
	userKnown     resolution = iota + 1 // his identity is known
	userLinked                          // it is not; a user has an address that he has proven
	userCreated                         // nobody has
	userAmbiguous                       // several have
)

// accountDecision says who is signed in. It is comparable: it is made again under the lock, and must come out
// the same.
type accountDecision struct {
	resolution resolution
	user       uuid.UUID // of exists and link
	email      string    // of create: the new user's; "" when there is none, or it is not his to take
	// free: nobody else has the best address.
	free bool
	// abandoned has the identity and nothing else, and goes before it is added again; Nil: nobody.
	abandoned uuid.UUID
}

// resolveAccount is the account decision. Only addresses that the provider has verified lead to a user, and only
// those that are his by proof attract: a confirmed address, or one that another provider has verified.
// Without such a user, an account that nobody has confirmed is taken over. MAILER_AUTOCONFIRM makes no
// address a proof.
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
		if m.Email == a.best && m.User != d.user {
			d.free = false
		}
		if !a.has(m.Email) {
			continue
		}
		if m.How != store.ByUnconfirmed {
			if !slices.Contains(proven, m.User) {
				proven = append(proven, m.User)
			}
		} else if m.Email == a.best { // nobody's accounts: the one of the best address will do
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
	case !d.free: // and not proven, or it would have led there
		d.email = ""
	}
	if d.resolution == userLinked {
		d.free = !slices.ContainsFunc(found, func(m store.Match) bool { return m.Email == a.best && m.User != d.user })
	}
	return d
}

// emailOutcome is what becomes of a user's address when a provider signs him in.
type emailOutcome struct {
	// adopt is the proven address that a user without any gets.
	adopt string
	// confirm: his address is proven.
	confirm bool
	// claim: the account was nobody's until now, so that whatever others may have left in it goes.
	claim bool
	// confirmByMail: he is asked by mail whether the address is his.
	confirmByMail bool
	// refuse: he is not let in.
	refuse bool
}

// refusesOutright: nobody is let in, and nothing is to be confirmed.
func (v emailOutcome) refusesOutright() bool { return v.refuse && !v.confirmByMail }

// emailRules are the settings that a settlement depends on.
type emailRules struct {
	optional, autoconfirm, allowUnverified bool
}

// reconcileEmail says it of a user as he is, or as he is created. Exactly the address that was proven becomes
// confirmed, never another one that the account happens to have.
func reconcileEmail(d accountDecision, u store.User, a providerEmails, r emailRules) emailOutcome {
	if !u.EmailConfirmedAt.IsZero() {
		return emailOutcome{}
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
		return emailOutcome{confirm: true, claim: d.resolution == userLinked || d.resolution == userKnown && u.PhoneConfirmedAt.IsZero()}
	}
	return emailOutcome{confirmByMail: true, refuse: !r.allowUnverified}
}

// confirmedAt is when the address of a new user is confirmed; zero: not yet.
func (v emailOutcome) confirmedAt(now time.Time) time.Time {
	if v.confirm {
		return now
	}
	return time.Time{}
}

// maxProfile bounds what a provider's profile may weigh: it gets into every token of the user.
const maxProfile = 16 << 10

// storableAddress: what a provider calls an address need not be one by our rules, but must be fit for a
// row and a comparison.
func storableAddress(s string) bool {
	return s != "" && len(s) <= 255 && utf8.ValidString(s) && strings.Contains(s, "@") && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// nameKeys are what Apple tells on the first sign-in only.
var nameKeys = []string{"name", "full_name", "family_name", "given_name", "middle_name", "nickname"}

// identityData is what is kept with an identity, and merged into user_metadata. old is what was
// there: names stay when the new data has none. What PostgreSQL refuses is left out.
func identityData(p *provider.Profile, a *providerEmails, old json.RawMessage) json.RawMessage {
	data := map[string]any{}
	for name, value := range p.Data {
		if storable(name, 1) == nil && storable(value, 2) == nil {
			data[name] = value
		}
	}
	named := false
	for _, key := range nameKeys {
		named = named || data[key] != nil
	}
	if !named && len(old) > 0 {
		var before map[string]any
		_ = json.Unmarshal(old, &before) // it came out of PostgreSQL
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
		// Claims are somebody else's choice; the rest is short.
		delete(data, "custom_claims")
		for name, value := range data {
			if s, ok := value.(string); ok && len(s) > 2048 {
				delete(data, name)
			}
		}
		text = mustJSON(data)
	}
	return text
}

// matched is the address by which an identity attracts others: none but a verified one.
func (a *providerEmails) matched() string {
	if a.bestVerified() {
		return a.best
	}
	return ""
}
