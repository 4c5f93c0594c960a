// Copies codes, and shows in the list what arrives while the page is in sight. Without this script the pages work too.
const status = document.getElementById('status')
const list = document.getElementById('list')

for (const button of document.querySelectorAll('button[data-copy]')) {
  button.hidden = false
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(button.dataset.copy)
    status.textContent = 'Copied.'
  })
}

// refresh replaces the list by that of the page as it is now, and keeps the focus.
async function refresh() {
  const answer = await fetch(location.href).catch(() => null) // the daemon may be starting again
  if (!answer?.ok) return
  const now = new DOMParser().parseFromString(await answer.text(), 'text/html')
  const fresh = now.getElementById('list')
  if (fresh.textContent === list.textContent) return
  const focused = document.activeElement?.getAttribute('href')
  const arrived = [...fresh.children].filter((item) => item.id && !document.getElementById(item.id)).length
  list.replaceChildren(...fresh.children)
  document.title = now.title
  if (arrived) status.textContent = `${arrived} new`
  for (const link of list.querySelectorAll('a')) {
    if (link.getAttribute('href') === focused) link.focus()
  }
}

if (list) setInterval(() => document.hidden || refresh(), 2000)
