package provider

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// OAuth 1.0a (RFC 5849) with HMAC-SHA1, the only protocol of Twitter's older interface. Requests are GETs with the
// protocol parameters in the Authorization header.

// credentials sign a request: the client's and, if there is a token, the token's.
type credentials struct{ key, secret, token, tokenSecret string }

// authorization returns the Authorization header of a request for a URL. The signature includes the URL's query. more
// are further protocol parameters (oauth_callback, oauth_verifier).
func (c credentials) authorization(method string, u *url.URL, more map[string]string, nonce string,
	now time.Time) string {
	params := map[string]string{
		"oauth_consumer_key": c.key, "oauth_nonce": nonce, "oauth_signature_method": "HMAC-SHA1",
		"oauth_timestamp": strconv.FormatInt(now.Unix(), 10), "oauth_version": "1.0",
	}
	if c.token != "" {
		params["oauth_token"] = c.token
	}
	for name, value := range more {
		params[name] = value
	}
	all := pairs{}
	for name, value := range params {
		all = append(all, [2]string{name, value})
	}
	for name, values := range u.Query() {
		for _, value := range values {
			all = append(all, [2]string{name, value})
		}
	}
	params["oauth_signature"] = c.sign(baseString(method, u, all))
	header := make([]string, 0, len(params))
	for name, value := range params {
		header = append(header, escape(name)+`="`+escape(value)+`"`)
	}
	slices.Sort(header)
	return "OAuth " + strings.Join(header, ", ")
}

// sign returns the signature of RFC 5849 section 3.4.2.
func (c credentials) sign(base string) string {
	mac := hmac.New(sha1.New, []byte(escape(c.secret)+"&"+escape(c.tokenSecret)))
	mac.Write([]byte(base))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// pairs are request parameters; a name may occur several times.
type pairs [][2]string

// baseString returns the text to sign: section 3.4.1.
func baseString(method string, u *url.URL, params pairs) string {
	escaped := make(pairs, len(params))
	for i, p := range params {
		escaped[i] = [2]string{escape(p[0]), escape(p[1])}
	}
	slices.SortFunc(escaped, func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
	var text strings.Builder
	for i, p := range escaped {
		if i > 0 {
			text.WriteByte('&')
		}
		text.WriteString(p[0] + "=" + p[1])
	}
	host := strings.ToLower(u.Host)
	if u.Scheme == "http" {
		host = strings.TrimSuffix(host, ":80")
	} else {
		host = strings.TrimSuffix(host, ":443")
	}
	path := cmp.Or(u.EscapedPath(), "/")
	return strings.ToUpper(method) + "&" + escape(strings.ToLower(u.Scheme)+"://"+host+path) + "&" +
		escape(text.String())
}

// escape returns the percent-encoding of section 3.6, in which a space is not a plus sign.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
