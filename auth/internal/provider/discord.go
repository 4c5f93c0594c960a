package provider

import (
	"cmp"
	"context"
	"strconv"
	"strings"
)

// discordMore: the name with its old four digits, and the picture (note C). Accounts without digits have
// the discriminator "0" or none.
func discordMore(_ context.Context, _ *signIn, me jsonObject, d *Profile) error {
	id, digits := me.idAt("id"), me.idAt("discriminator")
	if name := me.textAt("username"); name != "" {
		d.set("name", name+"#"+cmp.Or(digits, "0"))
	}
	const cdn = "https://cdn.discordapp.com/"
	if hash := me.textAt("avatar"); hash != "" {
		ending := ".png"
		if strings.HasPrefix(hash, "a_") {
			ending = ".gif"
		}
		d.set("picture avatar_url", cdn+"avatars/"+id+"/"+hash+ending)
		return nil
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	which := n % 5
	if err != nil || n == 0 {
		snowflake, _ := strconv.ParseUint(id, 10, 64) // 0 has a picture, too
		which = (snowflake >> 22) % 6
	}
	d.set("picture avatar_url", cdn+"embed/avatars/"+strconv.FormatUint(which, 10)+".png")
	return nil
}
