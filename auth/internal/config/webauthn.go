package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/shared/settings"
)

var (
	relyingParty  = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)*$`)
	androidOrigin = regexp.MustCompile(`^android:apk-key-hash:[A-Za-z0-9_-]{43}$`)
)

const mostRPName = 64

// checkWebAuthn checks the settings of the relying party. If no feature that is on needs them, it reports errors as
// warnings.
func (c *Config) checkWebAuthn(r *settings.Report) {
	rp, p, on := &c.Accounts.WebAuthn, &c.Accounts.Passkeys, c.needRelyingParty()
	wrong := func(name, format string, args ...any) { r.Wrong(name, "%s", fmt.Sprintf(format, args...)) }
	if on == "" {
		wrong = func(name, format string, args ...any) { r.Warn("%s: %s", name, fmt.Sprintf(format, args...)) }
	}
	for _, name := range []string{"AUTH_WEBAUTHN_RP_ID", "AUTH_WEBAUTHN_RP_DISPLAY_NAME", "AUTH_WEBAUTHN_RP_ORIGINS"} {
		if on != "" && !r.IsSet(name) {
			r.Wrong(name, "is required with %s=true", on)
		}
	}
	id := rp.RPID
	if id != "" && !isRelyingParty(id) {
		wrong("AUTH_WEBAUTHN_RP_ID", "must be a host name in lower case, such as example.com, without scheme, port and "+
			"final dot, and no IP address")
		id = ""
	}
	if utf8.RuneCountInString(rp.RPDisplayName) > mostRPName || strings.ContainsFunc(rp.RPDisplayName, notShown) {
		wrong("AUTH_WEBAUTHN_RP_DISPLAY_NAME", "must be one line of at most %d characters", mostRPName)
	}
	for _, origin := range rp.RPOrigins {
		if fault := originFault(origin, id); fault != "" {
			wrong("AUTH_WEBAUTHN_RP_ORIGINS", "%q %s", origin, fault)
		}
	}
	if p.AAL == flow.PasskeyAAL2 && p.UserVerification != flow.VerificationRequired {
		r.Warn("AUTH_PASSKEY_AAL=aal2 with AUTH_PASSKEY_USER_VERIFICATION=%s: aal2 only where the authenticator "+
			"verified the user", p.UserVerification)
	}
}

// needRelyingParty returns the name of a setting that is on and needs the relying party; "" if there is none.
func (c *Config) needRelyingParty() string {
	switch {
	case c.Accounts.Passkeys.Enabled:
		return "AUTH_PASSKEY_ENABLED"
	case c.Factors.WebAuthnEnroll:
		return "AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED"
	case c.Factors.WebAuthnVerify:
		return "AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED"
	}
	return ""
}

// isRelyingParty reports whether id is a host name that browsers accept as the ID of a relying party.
func isRelyingParty(id string) bool {
	_, err := netip.ParseAddr(id)
	return err != nil && len(id) <= 253 && relyingParty.MatchString(id)
}

// originFault returns what is wrong with an origin of the relying party; "" if it is valid. Origins are compared byte
// for byte with the browser's, so each has only one valid spelling. If id is "", the origin is not compared with it.
func originFault(origin, id string) string {
	if androidOrigin.MatchString(origin) {
		return ""
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme+"://"+u.Host != origin || !relyingParty.MatchString(u.Hostname()) ||
		u.Scheme != "https" && u.Scheme != "http" {
		return "must be https://HOST or https://HOST:PORT in lower case, with nothing behind, or " +
			"android:apk-key-hash: and 43 characters of base64url"
	}
	host, port := u.Hostname(), u.Port()
	_, err = netip.ParseAddrPort("0.0.0.0:" + port)
	defaultPort := map[string]string{"https": "443", "http": "80"}[u.Scheme]
	switch {
	case host == u.Host: // without a port
	case err != nil || strings.HasPrefix(port, "0"):
		return "has no port of 1 to 65535 behind its colon"
	case port == defaultPort:
		return "must leave out the default port " + port
	}
	switch {
	case u.Scheme == "http" && host != "localhost" && !strings.HasSuffix(host, ".localhost"):
		return "begins with http://, which browsers allow for localhost and *.localhost alone"
	case id != "" && host != id && !strings.HasSuffix(host, "."+id):
		return "must have the host " + id + " (AUTH_WEBAUTHN_RP_ID), or one below it"
	}
	return ""
}
