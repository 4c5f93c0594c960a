package mail

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// SampleNames returns the names of the mails that a preview shows. A name is that of the kind's file in the folder of
// templates. EmailChange has two names, since its mails to the present and to the new address differ.
func SampleNames() []string {
	var names []string
	for _, k := range Kinds {
		names = append(names, strings.ToLower(k.Setting()))
		if k == EmailChange {
			names = append(names, "email_change_current")
		}
	}
	return append(names, string(Test))
}

// Sample returns the payload of the mail with the given name, one of SampleNames, with invented data. Its link does
// nothing.
func Sample(name, siteURL, externalURL string, now time.Time) Payload {
	kind := Test
	i := slices.IndexFunc(Kinds, func(k Kind) bool {
		return strings.ToLower(k.Setting()) == strings.TrimSuffix(name, "_current")
	})
	if i >= 0 {
		kind = Kinds[i]
	}
	const user, next, hash = "ann@example.org", "ann.new@example.org", "0123456789abcdef0123456789abcdef"
	p := Payload{To: user, Kind: kind, Ordered: now, Expires: now.Add(time.Hour)}
	p.Vars = Vars{SiteURL: siteURL, Email: user, Data: json.RawMessage(`{"name":"Ann Example"}`)}
	switch kind {
	case EmailChange:
		p.Vars.NewEmail, p.Vars.SendingTo, p.To = next, next, next
		if name != strings.ToLower(kind.Setting()) {
			p.Vars.SendingTo, p.To = user, user
		}
	case EmailChanged:
		p.Vars.Email, p.Vars.OldEmail = next, user
	case PhoneChanged:
		p.Vars.Phone, p.Vars.OldPhone = "15550001", "15550002"
	case IdentityLinked, IdentityUnlinked:
		p.Vars.Provider = "github"
	case FactorEnrolled, FactorUnenrolled:
		p.Vars.FactorType = "totp"
	case PasskeyCreated, PasskeyDeleted:
		p.Vars.FriendlyName = "Apple Passwords"
	case Reauthentication:
		p.Vars.Token = "123456"
	}
	if kind.hasLink() {
		types := map[Kind]string{Invite: LinkInvite, Confirmation: LinkSignup, Recovery: LinkRecovery,
			MagicLink: LinkMagicLink, EmailChange: LinkEmailChange}
		p.Vars.Token, p.Vars.TokenHash, p.Vars.RedirectTo = "123456", hash, siteURL
		p.Vars.ConfirmationURL = (&Links{}).URL(externalURL, types[kind], hash, siteURL)
	}
	return p
}
