package mail

import (
	"fmt"
	"html/template"
	"strings"
	"sync"
)

// Kind is which mail it is. The texts are in the database and in SMTP_HEADERS' $messageType.
type Kind string

// The kinds of mails (docs/mail.md#which-mail).
const (
	Invite           Kind = "invite"
	Confirmation     Kind = "confirmation"
	Recovery         Kind = "recovery"
	MagicLink        Kind = "magic_link"
	EmailChange      Kind = "email_change"
	Reauthentication Kind = "reauthenticate"
	PasswordChanged  Kind = "password_changed_notification"
	EmailChanged     Kind = "email_changed_notification"
	PhoneChanged     Kind = "phone_changed_notification"
	IdentityLinked   Kind = "identity_linked_notification"
	IdentityUnlinked Kind = "identity_unlinked_notification"
	FactorEnrolled   Kind = "mfa_factor_enrolled_notification"
	FactorUnenrolled Kind = "mfa_factor_unenrolled_notification"
)

// Kinds are all mails there are, in the order of docs/mail.md#templates.
var Kinds = []Kind{
	Invite, Confirmation, Recovery, MagicLink, EmailChange, Reauthentication, PasswordChanged, EmailChanged,
	PhoneChanged, IdentityLinked, IdentityUnlinked, FactorEnrolled, FactorUnenrolled,
}

// Setting is the kind's part in the names of settings: AUTH_MAILER_SUBJECTS_<Setting>.
func (k Kind) Setting() string {
	if k == Reauthentication {
		return "REAUTHENTICATION"
	}
	return strings.ToUpper(string(k))
}

// builtIn are a kind's own subject and body, used where the operator gives none or the template can't be loaded.
type builtIn struct {
	subject string
	heading string
	lines   []string
	// link is the words on the link; "" for mails without one.
	link string
	// code shows the digits instead of a link.
	code bool
	// last closes the mail: what to do if the recipient didn't request it.
	last string
}

const (
	notMe     = "If you didn't ask for this, you can ignore this email: nothing changes without the link."
	protectMe = "If this wasn't you, change your password at once and contact support."
)

var builtIns = map[Kind]builtIn{
	Invite: {
		subject: "You've been invited",
		heading: "You've been invited",
		lines:   []string{"You have been invited to create an account on {{ .SiteURL }}. Follow the link to accept."},
		link:    "Accept the invitation",
		last:    "If you don't know who invited you, you can ignore this email.",
	},
	Confirmation: {
		subject: "Confirm your email address",
		heading: "Confirm your email address",
		lines:   []string{"Thank you for signing up. Follow the link to confirm that {{ .Email }} is yours."},
		link:    "Confirm my address",
		last:    notMe,
	},
	Recovery: {
		subject: "Reset your password",
		heading: "Reset your password",
		lines: []string{"Somebody, hopefully you, asked to reset the password of {{ .Email }}. Follow the link to " +
			"choose a new one."},
		link: "Choose a new password",
		last: notMe,
	},
	MagicLink: {
		subject: "Your sign-in link",
		heading: "Your sign-in link",
		lines:   []string{"Follow the link to sign in as {{ .Email }}. It works once."},
		link:    "Sign in",
		last:    notMe,
	},
	EmailChange: {
		subject: "Confirm your new email address",
		heading: "Confirm your new email address",
		// The owner of the new address knows nothing of an account that another user wants to move to it: the mail
		// says that it is about one, and shows nothing that the requester has chosen.
		lines: []string{"{{ if eq .SendingTo .NewEmail }}Somebody, hopefully you, asked to make {{ .NewEmail }} the " +
			"address of an account at {{ .SiteURL }}. " +
			"Follow the link only if that account is yours.{{ else }}" +
			"Somebody, hopefully you, asked to change the address of your account from {{ .Email }} to {{ .NewEmail " +
			"}}. Follow the link to agree.{{ end }}"},
		link: "Confirm the change",
		last: notMe,
	},
	Reauthentication: {
		subject: "{{ .Token }} is your verification code",
		heading: "Your verification code",
		lines:   []string{"Enter this code to confirm that it is you:"},
		code:    true,
		last:    "Never pass the code on. If you didn't ask for it, change your password.",
	},
	PasswordChanged: {
		subject: "Your password was changed",
		heading: "Your password was changed",
		lines:   []string{"The password of the account {{ .Email }} has just been changed."},
		last:    "If this wasn't you, reset your password at once and contact support.",
	},
	EmailChanged: {
		subject: "Your email address was changed",
		heading: "Your email address was changed",
		lines:   []string{"The address of your account was changed from {{ .OldEmail }} to {{ .Email }}."},
		last:    protectMe,
	},
	PhoneChanged: {
		subject: "Your phone number was changed",
		heading: "Your phone number was changed",
		lines: []string{"The phone number of the account {{ .Email }} was changed{{ with .OldPhone }} from {{ . " +
			"}}{{ end }} to {{ .Phone }}."},
		last: protectMe,
	},
	IdentityLinked: {
		subject: "A new sign-in method was linked to your account",
		heading: "A new sign-in method was linked",
		lines:   []string{"The account {{ .Email }} can now be signed in to with {{ .Provider }}."},
		last:    protectMe,
	},
	IdentityUnlinked: {
		subject: "A sign-in method was removed from your account",
		heading: "A sign-in method was removed",
		lines:   []string{"The account {{ .Email }} can no longer be signed in to with {{ .Provider }}."},
		last:    protectMe,
	},
	FactorEnrolled: {
		subject: "A new verification method was added to your account",
		heading: "A verification method was added",
		lines:   []string{"The account {{ .Email }} has a new verification method: {{ .FactorType }}."},
		last:    protectMe,
	},
	FactorUnenrolled: {
		subject: "A verification method was removed from your account",
		heading: "A verification method was removed",
		lines:   []string{"The account {{ .Email }} has lost a verification method: {{ .FactorType }}."},
		last:    protectMe,
	},
}

// source is the body as a template.
func (b builtIn) source() string {
	var s strings.Builder
	s.WriteString(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"></head>
<body style="font-family: sans-serif; line-height: 1.5; max-width: 36em; margin: 2em auto; padding: 0 1em">
`)
	fmt.Fprintf(&s, "<h2>%s</h2>\n", template.HTMLEscapeString(b.heading))
	for _, line := range b.lines {
		fmt.Fprintf(&s, "<p>%s</p>\n", line)
	}
	if b.link != "" {
		fmt.Fprintf(&s, "<p><a href=\"{{ .ConfirmationURL }}\">%s</a></p>\n", template.HTMLEscapeString(b.link))
	}
	if b.code {
		s.WriteString("<p style=\"font-size: 1.6em; letter-spacing: 0.15em\"><strong>{{ .Token }}</strong></p>\n")
	}
	fmt.Fprintf(&s, "<p style=\"color: #666\">%s</p>\n</body>\n</html>\n", template.HTMLEscapeString(b.last))
	return s.String()
}

// builtInTexts are parsed for the first mail, not at the start: an error in them is our own bug, and they take a
// quarter of a megabyte.
var builtInTexts = sync.OnceValues(func() (map[Kind]*body, map[Kind]*subject) {
	bodies, subjects := map[Kind]*body{}, map[Kind]*subject{}
	for kind, b := range builtIns {
		parsed, err := parseBody(b.source())
		if err != nil {
			panic(fmt.Sprintf("mail: built-in body of %s: %v", kind, err))
		}
		s, err := parseSubject(b.subject)
		if err != nil {
			panic(fmt.Sprintf("mail: built-in subject of %s: %v", kind, err))
		}
		bodies[kind], subjects[kind] = parsed, s
	}
	return bodies, subjects
})
