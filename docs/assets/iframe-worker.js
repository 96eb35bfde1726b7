// A page that is opened from disk cannot start a Worker, which the search needs. This file runs the search in a hidden
// frame instead. It does nothing on a server.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.onmessage = this.onerror = this.onmessageerror = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.onload = () => {
        const unsent = this.waiting;
        this.waiting = null;
        unsent.forEach((data) => this.postMessage(data));
      };
      this.frame.srcdoc = `<script>
        self.postMessage = (data) => {
          parent.dispatchEvent(new CustomEvent("curtsy-worker", { detail: structuredClone(data) }));
        };
      </script><script src="${new URL(url, document.baseURI)}"></script>`;
      this.heard = (event) => setTimeout(() => this.onmessage && this.onmessage({ data: event.detail }));
      window.addEventListener("curtsy-worker", this.heard);
      document.body.append(this.frame);
    }
    postMessage(data) {
      const copy = structuredClone(data); // with a worker, too, nothing is shared
      if (this.waiting) this.waiting.push(copy);
      else setTimeout(() => this.frame.contentWindow?.dispatchEvent(new MessageEvent("message", { data: copy })));
    }
    terminate() {
      window.removeEventListener("curtsy-worker", this.heard);
      this.frame.remove();
    }
  };
}
