package account

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"gatehouse/auth/internal/provider"
)

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
