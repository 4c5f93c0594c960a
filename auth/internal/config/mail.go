package config

import (
	"reflect"
	"strings"
	"time"

	"gatehouse/auth/internal/mail"
)

// mailerConfig has the settings of the texts of mails.
type mailerConfig struct {
	// Digits of a code in a mail, 6 to 10; any other number counts as 6.
	OTPLength int `env:"AUTH_MAILER_OTP_LENGTH" envDefault:"6"`
	Paths     mail.Paths
	// Subject of this kind of mail, a template; unset: the built-in subject.
	Subjects kindTexts `envPrefix:"AUTH_MAILER_SUBJECTS_"`
	// URL of the template of this mail's body; unset, or if it cannot be fetched: the built-in body.
	Templates kindTexts `envPrefix:"AUTH_MAILER_TEMPLATES_"`
}

// kindTexts has one text for each kind of mail.
type kindTexts struct {
	Invite           string `env:"INVITE"`
	Confirmation     string `env:"CONFIRMATION"`
	Recovery         string `env:"RECOVERY"`
	MagicLink        string `env:"MAGIC_LINK"`
	EmailChange      string `env:"EMAIL_CHANGE"`
	Reauthentication string `env:"REAUTHENTICATION"`
	PasswordChanged  string `env:"PASSWORD_CHANGED_NOTIFICATION"`
	EmailChanged     string `env:"EMAIL_CHANGED_NOTIFICATION"`
	PhoneChanged     string `env:"PHONE_CHANGED_NOTIFICATION"`
	IdentityLinked   string `env:"IDENTITY_LINKED_NOTIFICATION"`
	IdentityUnlinked string `env:"IDENTITY_UNLINKED_NOTIFICATION"`
	FactorEnrolled   string `env:"MFA_FACTOR_ENROLLED_NOTIFICATION"`
	FactorUnenrolled string `env:"MFA_FACTOR_UNENROLLED_NOTIFICATION"`
	PasskeyCreated   string `env:"PASSKEY_CREATED_NOTIFICATION"`
	PasskeyDeleted   string `env:"PASSKEY_DELETED_NOTIFICATION"`
}

// byKind returns the texts that are set. The name of a kind is the end of its variable's name, in lower case.
func (k kindTexts) byKind() map[mail.Kind]string {
	all := map[mail.Kind]string{}
	for field, v := range reflect.ValueOf(k).Fields() {
		kind := mail.Kind(strings.ToLower(field.Tag.Get("env")))
		if kind == "reauthentication" {
			kind = mail.Reauthentication
		}
		if text := v.String(); text != "" {
			all[kind] = text
		}
	}
	return all
}

// smtpConfig has the settings of the mail server.
type smtpConfig struct {
	Server mail.SMTPSettings
	// required: STARTTLS, or no mail is sent; opportunistic: STARTTLS if the server offers it; implicit: TLS from the
	// first byte; none: no TLS; auto: implicit on port 465, otherwise opportunistic.
	TLS string `env:"AUTH_SMTP_TLS" envDefault:"auto" oneof:"auto opportunistic required implicit none" fold:"true"`
	// Name shown next to the address; unset: the address.
	SenderName string `env:"AUTH_SMTP_SENDER_NAME"`
	// Pause between two mails of the same kind to one address; unset: 900s for sign-up confirmations, 60s for others.
	MaxFrequency time.Duration `env:"AUTH_SMTP_MAX_FREQUENCY" min:"0s"`
	// Further headers of mails: a JSON object of names and lists of values; `$messageType` stands for the kind of mail.
	Headers string `env:"AUTH_SMTP_HEADERS"`
}
